#!/bin/sh
# Installs lichen on Debian 12 or newer (amd64, arm64): a virtual environment in /opt/lichen, units, users, and a
# first configuration. A second run repairs or upgrades: configuration, state and drop-ins stay as they are.
# docs/install.md lists the places.
set -eu

usage() {
    cat <<'END'
install.sh [--agent] [--coordinator] [options]     neither: --agent
  --wheel FILE       the wheel to install; without it, the source tree that this script is in
  --package SPEC     what pip installs instead, for example lichen==0.1.0
  --extras LIST      extras of pip; default: infer for an agent, coordinator,export for a coordinator
  --train            this device trains: adds the extra train, and the drop-in that PyTorch needs
  --device NAME      the device's name in a new agent.toml; default: the host's
  --fleet NAME       the fleet's name in new configurations; default: fleet
  --python PROGRAM   default: python3
  --no-lock          install the newest of every library, without hashes, instead of those of install/requirements.lock
  --start            enable the services and start them
  --rollback         go back to the version that was installed before, with the coordinator's databases from then
                     if it cannot use the present ones (docs/install.md: what happens to later data)
  --uninstall        remove all but configuration and state
  --purge            with --uninstall: remove configuration, state and users, too
  --root DIR         install everything below DIR, without users and services: for inspection, or for an image
  --no-venv          with --root: no virtual environment either
If /etc/lichen/constraints.txt exists, it limits the versions that pip may install (onnxruntime<1.28), and the lock is
not used.
Exit status: 0 done, 2 the command line is wrong, 69 a requirement is missing, 77 not root.
END
}

say() { printf '%s\n' "install.sh: $*"; }
fail() {
    status=$1
    shift
    printf '%s\n' "install.sh: $*" >&2
    exit "$status"
}
need() { [ $# -ge 2 ] || fail 2 "$1 needs a value; --help"; }

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
tree=$(dirname -- "$here")
agent=no coordinator=no wheel='' package='' extras='' train=no python=python3 start=no action=install purge=no
# The same rule as protocol.base.Name: accepted by brokers, certificates and file systems.
as_name() { printf '%s\n' "$1" | tr -c 'A-Za-z0-9_\n-' - | sed 's/^[_-]*//' | cut -c1-56; }
root='' locked=yes venv=yes fleet=fleet device=$(as_name "$(uname -n)")

while [ $# -gt 0 ]; do
    case $1 in
    --agent) agent=yes ;;
    --coordinator) coordinator=yes ;;
    --wheel) need "$@" && wheel=$2 && shift ;;
    --package) need "$@" && package=$2 && shift ;;
    --extras) need "$@" && extras=$2 && shift ;;
    --train) train=yes ;;
    --device) need "$@" && device=$2 && shift ;;
    --fleet) need "$@" && fleet=$2 && shift ;;
    --python) need "$@" && python=$2 && shift ;;
    --no-lock) locked=no ;;
    --start) start=yes ;;
    --rollback) action=rollback ;;
    --uninstall) action=uninstall ;;
    --purge) purge=yes ;;
    --root) need "$@" && root=$2 && shift ;;
    --no-venv) venv=no ;;
    -h | --help) usage && exit 0 ;;
    *) fail 2 "unknown option $1; --help" ;;
    esac
    shift
done
[ "$agent$coordinator" = nono ] && agent=yes
[ -z "$wheel" ] || [ -z "$package" ] || fail 2 "--wheel and --package exclude each other"
[ "$venv" = yes ] || [ -n "$root" ] || fail 2 "--no-venv needs --root"
for name in "$fleet" "$device"; do
    [ -n "$name" ] && [ "$(as_name "$name")" = "$name" ] ||
        fail 2 "--fleet and --device: 1 to 56 letters, digits, '_' and '-', a letter or digit first; write $(as_name "$name")"
done
[ -n "$root" ] || [ "$(id -u)" = 0 ] || fail 77 "only root may install; sudo $0 ..., or --root DIR to inspect the result"
case $root in '' | /*) ;; *) root=$PWD/$root ;; esac

opt=$root/opt/lichen
etc=$root/etc/lichen
units=$root/etc/systemd/system
roles='' switched=no
[ "$agent" = no ] || roles="$roles agent"
[ "$coordinator" = no ] || roles="$roles coordinator"

manager() { [ -z "$root" ] && [ -d /run/systemd/system ]; }
state_of() { case $1 in agent) echo lichen ;; *) echo lichen-coordinator ;; esac }

check_machine() {
    id='' version=''
    # shellcheck disable=SC1091  # belongs to the machine
    [ -r /etc/os-release ] && id=$(. /etc/os-release && echo "${ID:-} ${ID_LIKE:-}") &&
        version=$(. /etc/os-release && echo "${VERSION_ID:-}")
    case $id in
    *debian*) ;;
    *) say "this is not Debian (${id:-unknown}): it may work" ;;
    esac
    case $id in
    debian*) [ -z "$version" ] || [ "${version%%.*}" -ge 12 ] || fail 69 "Debian $version: Python 3.11 needs Debian 12" ;;
    esac
    case $(uname -m) in
    x86_64 | aarch64) ;;
    *) say "$(uname -m): neither amd64 nor arm64; wheels may be missing" ;;
    esac
    [ "$venv" = yes ] || return 0
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        fail 69 "$python is missing or older than 3.11: apt-get install python3, or give --python"
    [ "$("$python" -c 'import sys; print(sys.maxsize > 2**32)')" = True ] ||
        fail 69 "$python has 32 bits: onnxruntime and torch have no wheels for it; install a 64-bit system"
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail 69 "$python cannot create virtual environments: apt-get install python3-venv"
}

default_extras() {
    [ -z "$extras" ] || return 0
    [ "$agent" = no ] || extras=infer
    [ "$coordinator" = no ] || extras=${extras:+$extras,}coordinator,export
    [ "$train" = no ] || extras=${extras:+$extras,}train
}

# Sets $wheel to a file, built from the source tree if none was given.
find_wheel() {
    [ -z "$package" ] || return 0
    if [ -n "$wheel" ]; then
        [ -f "$wheel" ] || fail 69 "--wheel $wheel: no such file"
        return 0
    fi
    [ -f "$tree/pyproject.toml" ] || fail 2 "no source tree around $here: give --wheel or --package"
    say "building a wheel from $tree"
    built=$(mktemp -d)
    "$python" -m venv "$built/venv"
    # A copy: a build leaves folders behind, and the tree may belong to another user.
    mkdir "$built/tree"
    (cd "$tree" && tar -cf - pyproject.toml README.md LICENSE protocol runtime models export edge_agent coordinator console lichen) |
        tar -xf - -C "$built/tree"
    # The same files give the same wheel, so that a second run finds it installed.
    isolated=''
    if [ "$locked" = yes ]; then # the build tools are installed with hashes, too
        awk '/^# for:/ { next } /^[A-Za-z0-9]/ { on = /^setuptools==/ } on' "$here/requirements.lock" >"$built/tools.txt"
        "$built/venv/bin/pip" install -q --disable-pip-version-check --require-hashes --no-deps -r "$built/tools.txt" ||
            fail 69 "pip could not install the build tools of $here/requirements.lock; --no-lock installs without hashes"
        isolated=--no-build-isolation
    fi
    # shellcheck disable=SC2086  # one word or none
    SOURCE_DATE_EPOCH=1767225600 "$built/venv/bin/pip" wheel -q $isolated --no-deps --wheel-dir "$built" "$built/tree"
    wheel=$(ls "$built"/*.whl)
}

# An environment for each version and choice of extras, and a link to the one in use: an upgrade that fails changes nothing.
make_venv() {
    default_extras
    pins=$etc/constraints.txt
    if [ -s "$pins" ]; then
        [ "$locked" = no ] || say "$pins exists: it selects the libraries, without hashes"
        locked=no
    else
        pins=/dev/null
    fi
    choose_libraries
    if [ -n "$package" ]; then
        name=$(printf %s "$package+$extras" | tr -c 'A-Za-z0-9_.+,\n-' _)
        [ ! -s "$chosen" ] || name=$name+$(sha256sum <"$chosen" | cut -c1-12)
        what="$package"
        case $what in *\[*) ;; *==*) what="${package%%==*}[${extras}]==${package#*==}" ;; *) what="${package}[${extras}]" ;; esac
    else
        name=$(basename "$wheel" .whl | cut -d- -f2)-$({ cat "$wheel" && printf %s "$extras" && cat "$chosen"; } | sha256sum | cut -c1-12)
        what="${wheel}[${extras}]"
    fi
    new=$opt/versions/$name
    if [ -f "$new/.extras" ] && [ "$(cat "$new/.extras")" = "$extras" ]; then
        say "$name with [$extras] is installed"
    else
        say "installing $name with [$extras] in $new"
        mkdir -p "$opt/versions"
        rm -f "$new/.extras"
        "$python" -m venv "$new"
        install_into "$new"
        "$new/bin/lichen" --version >/dev/null || give_up "$new/bin/lichen does not start"
        printf %s "$extras" >"$new/.extras"
    fi
    use "$name"
}

# Sets $chosen: the part of the lock that the extras need, or the constraints of the machine.
choose_libraries() {
    chosen=$pins
    [ "$locked" = yes ] || return 0
    lock=$here/requirements.lock
    [ -f "$lock" ] || fail 69 "$lock is missing: give --no-lock to install the newest of every library"
    for extra in $(echo "$extras" | tr , ' '); do
        grep -q "^# for:.* $extra\\( \\|\$\\)" "$lock" ||
            fail 2 "--extras $extra: not in $lock; give --no-lock to install the newest of every library"
    done
    scratch=$(mktemp -d)
    chosen=$scratch/libraries.txt
    awk -v wanted=",base,$extras," '
        /^# for:/ { on = 0; for (i = 3; i <= NF; i++) if (index(wanted, "," $i ",")) on = 1; next }
        on' "$lock" >"$chosen"
}

install_into() { # ENVIRONMENT
    if [ "$locked" = no ]; then
        "$1/bin/pip" install -q --disable-pip-version-check -c "$pins" "$what" ||
            give_up "pip could not install $what"
        return 0
    fi
    "$1/bin/pip" install -q --disable-pip-version-check --require-hashes --only-binary :all: --no-deps -r "$chosen" ||
        give_up "pip could not install the libraries of $lock (--no-lock installs the newest of every library, without hashes)"
    "$1/bin/pip" install -q --disable-pip-version-check --no-deps "$what" || give_up "pip could not install $what"
    "$1/bin/pip" check --disable-pip-version-check || give_up "$lock does not hold all that $what needs (--no-lock)"
}

give_up() { # removes an incomplete environment, but not the one in use, which needs a repair
    [ "versions/$name" = "$(readlink "$opt/current" 2>/dev/null)" ] || rm -rf "$new"
    fail 69 "$1; nothing was switched"
}

use() {
    now=$(readlink "$opt/current" 2>/dev/null || true)
    if [ "$now" != "versions/$1" ]; then
        [ -z "$now" ] || { point previous "$now" && switched=yes; }
        point current "versions/$1"
    fi
    for old in "$opt"/versions/*; do
        case versions/$(basename "$old") in
        "$(readlink "$opt/current")" | "$(readlink "$opt/previous" 2>/dev/null)") ;;
        *) rm -rf "$old" ;;
        esac
    done
    mkdir -p "$root/usr/local/bin"
    ln -sfn /opt/lichen/current/bin/lichen "$root/usr/local/bin/lichen"
}

point() { ln -sfn "$2" "$opt/$1.new" && mv -fT "$opt/$1.new" "$opt/$1"; }

make_users() {
    [ -z "$root" ] || return 0
    if command -v systemd-sysusers >/dev/null 2>&1; then
        systemd-sysusers "$tree/systemd/lichen.sysusers"
    else
        for role in $roles; do
            id "lichen-$role" >/dev/null 2>&1 ||
                useradd --system --user-group --no-create-home --home-dir "/var/lib/$(state_of "$role")" \
                    --shell /usr/sbin/nologin "lichen-$role"
        done
    fi
}

put() { # FILE TARGET: replaces a target that differs
    cmp -s "$1" "$2" || install -D -m 644 "$1" "$2"
}

put_units() {
    mkdir -p "$root/usr/lib/sysusers.d"
    put "$tree/systemd/lichen.sysusers" "$root/usr/lib/sysusers.d/lichen.conf"
    for example in "$tree"/systemd/examples/*; do
        put "$example" "$root/usr/share/lichen/systemd/examples/$(basename "$example")"
    done
    for role in $roles; do
        put "$tree/systemd/lichen-$role.service" "$units/lichen-$role.service"
    done
    case ,$extras, in
    *,train,*)
        [ "$agent" = no ] ||
            put "$tree/systemd/examples/agent-train.conf" "$units/lichen-agent.service.d/train.conf"
        ;;
    esac
    ! has_page || for unit in $page_units; do
        put "$tree/systemd/$unit" "$units/$unit"
    done
    ! has_console || put "$tree/systemd/lichen-console.service" "$units/lichen-console.service"
}

page_units='lichen-agent-page.socket lichen-agent-page.service'
has_page() {
    case $agent,$extras, in yes,*web,*) return 0 ;; *) return 1 ;; esac
}
has_console() {
    case $coordinator,$extras, in yes,*console,*) return 0 ;; *) return 1 ;; esac
}

fill() { # TEMPLATE TARGET: only if there is none
    [ ! -e "$2" ] || return 0
    install -d -m 755 "$(dirname "$2")"
    sed -e "s/@FLEET@/$fleet/" -e "s/@DEVICE@/$device/" "$1" >"$2.new"
    chmod 644 "$2.new"
    mv "$2.new" "$2"
    say "wrote $2: check its values"
}

make_places() {
    install -d -m 755 "$etc"
    for role in $roles; do
        fill "$here/$role.toml" "$etc/$role.toml"
        for folder in "$root/var/lib/$(state_of "$role")" "$root/var/cache/$(state_of "$role")"; do
            install -d -m 700 "$folder"
            [ -n "$root" ] || chown "lichen-$role:lichen-$role" "$folder"
        done
    done
    [ "$coordinator" = no ] || fill "$here/task.toml" "$etc/task.toml"
}

settle() {
    manager || { say "no systemd runs here (or --root): services are unchanged"; return 0; }
    systemctl daemon-reload
    for role in $roles; do
        if [ "$start" = yes ]; then
            systemctl enable --quiet "lichen-$role"
            systemctl restart "lichen-$role" || return 1
        else
            systemctl try-restart "lichen-$role" || return 1 # only if it runs
        fi
    done
    if has_console; then
        [ "$start" = no ] || systemctl enable --quiet --now lichen-console || return 1
        systemctl try-restart lichen-console || return 1
    fi
    has_page || return 0
    [ "$start" = no ] || systemctl enable --quiet --now lichen-agent-page.socket || return 1
    systemctl try-restart lichen-agent-page.service # only if somebody looks
}

# If the services of a new version do not start, go back; a version that was installed before has nothing to go back to.
settle_or_go_back() {
    ! settle || return 0
    [ "$switched" = yes ] || fail 69 "a service does not start: journalctl -u lichen-agent -u lichen-coordinator"
    say "the new version does not start (journalctl -u lichen-agent -u lichen-coordinator): going back"
    rollback
    fail 69 "the version before is active again"
}

rollback() {
    before=$(readlink "$opt/previous" 2>/dev/null || true)
    { [ -n "$before" ] && [ -d "$opt/$before" ]; } || fail 69 "there is no version before this one in $opt"
    now=$(readlink "$opt/current")
    roles='agent coordinator' was_up=no # both daemons have the same version
    if manager && [ -e "$units/lichen-coordinator.service" ]; then
        was_up=$(systemctl is-active lichen-coordinator || true)
        systemctl stop lichen-coordinator
    fi
    point current "$before"
    point previous "$now"
    say "$before is active again"
    put_back
    start=no
    settle
    case $was_up in active | activating | reloading) systemctl start lichen-coordinator ;; esac
}

# Databases of a newer version that this one cannot use are replaced by the copies from before.
put_back() {
    [ -f "$etc/coordinator.toml" ] && [ -d "$root/var/lib/lichen-coordinator" ] || return 0
    [ -z "$root" ] || LICHEN_STATE_DIR=$root/var/lib/lichen-coordinator
    [ -z "$root" ] || export LICHEN_STATE_DIR
    "$opt/current/bin/lichen" coordinator downgrade --config "$etc/coordinator.toml" ||
        fail 69 "the coordinator's state is unchanged, and $before may not start with it; --rollback returns to the newer version"
}

uninstall() {
    if manager; then
        [ ! -e "$units/lichen-agent-page.socket" ] ||
            systemctl disable --quiet --now lichen-agent-page.socket lichen-agent-page.service || true
        [ ! -e "$units/lichen-console.service" ] || systemctl disable --quiet --now lichen-console || true
        for role in agent coordinator; do
            [ ! -e "$units/lichen-$role.service" ] || systemctl disable --quiet --now "lichen-$role" || true
        done
    fi
    for role in agent coordinator; do
        rm -f "$units/lichen-$role.service"
        [ "$purge" = no ] || rm -rf "$units/lichen-$role.service.d"
    done
    for unit in $page_units lichen-console.service; do
        rm -f "$units/$unit"
    done
    rm -rf "$opt" "$root/usr/share/lichen"
    rm -f "$root/usr/local/bin/lichen" "$root/usr/lib/sysusers.d/lichen.conf"
    if [ "$purge" = yes ]; then
        for folder in lichen lichen-coordinator; do
            rm -rf "$root/var/lib/$folder" "$root/var/cache/$folder"
        done
        rm -rf "$etc"
        for role in agent coordinator; do
            [ -n "$root" ] || ! id "lichen-$role" >/dev/null 2>&1 || userdel "lichen-$role"
        done
    else
        say "kept: $etc, $root/var/lib/lichen*, drop-ins and users (--purge removes them)"
    fi
    ! manager || systemctl daemon-reload
}

built=''
scratch=''
trap '[ -z "$built" ] || rm -rf "$built"; [ -z "$scratch" ] || rm -rf "$scratch"' EXIT
case $action in
rollback) rollback ;;
uninstall) uninstall ;;
install)
    check_machine
    if [ "$venv" = yes ]; then
        find_wheel
        make_venv
    else
        default_extras
    fi
    make_users
    make_places
    put_units
    settle_or_go_back
    say "done. Next: lichen agent enroll (docs/identity.md), lichen agent doctor; systemctl enable --now lichen-agent"
    ;;
esac
