"""``[storage]``: where the coordinator's state is kept."""

from typing import Annotated

from pydantic import Field

from runtime.settings.load import ConfigPath, Section


class StorageSettings(Section):
    """Where the state is; the default is ``state_dir`` alone (docs/storage.md)."""

    url: Annotated[str, Field(max_length=2000, repr=False)] = ""
    """Of a PostgreSQL database; empty: SQLite files in ``state_dir``. It may have a password, so it is never
    shown; better name a ``passfile``."""
    schema_name: Annotated[str, Field(pattern=r"^([a-z_][a-z0-9_]{0,39})?$")] = ""
    """The schema of the tables; empty: ``lichen_`` and the fleet's name."""
    connect_timeout_s: Annotated[float, Field(ge=2, le=60)] = 5.0
    """For each attempt to connect."""
    blobs: Annotated[str, Field(max_length=1024)] = ""
    """Versions, bundles, accepted updates and uploads: ``s3://BUCKET/PREFIX?endpoint=URL&region=NAME``;
    empty: folders in ``state_dir``."""
    credentials: ConfigPath | None = None
    """A file as ``~/.aws/credentials``; None: ``AWS_ACCESS_KEY_ID`` and the like, or the machine's role."""
    ca_file: ConfigPath | None = None
    """Certificates to trust besides the system's, for a bucket's service of your own."""
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 20.0
    """Of one request to the bucket's service."""
    cache_bytes: Annotated[int, Field(ge=1024 * 1024)] = 1024**3
    """Of a bucket's blobs, kept in ``state_dir/cache`` to serve devices over MQTT."""
    blob_grace_s: Annotated[float, Field(ge=60, le=365 * 86400)] = 3600.0
    """A blob that no version needs stays in the bucket for at least this long: another machine may have just
    stored it."""
    download_above_bytes: Annotated[int, Field(ge=0)] = 1024 * 1024
    """Devices that may download over HTTPS get larger blobs from the bucket, by pre-signed URLs; 0: none."""
    download_s: Annotated[float, Field(ge=30, le=7 * 86400)] = 900.0
    """Validity of such a URL."""
