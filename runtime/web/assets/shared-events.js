// A SharedWorker: one stream of events for all tabs of a browser that ask for the same address. Over HTTP/1.1 a browser
// opens six connections to one host, and each stream keeps one.
"use strict";
const streams = new Map();  // address -> {address, source, tabs, texts}; texts: the newest text of each event that is heard
const SILENT_MS = 180000;  // a tab says every half minute that it is there, in the background each minute; a dead one does not

const tell = (stream, message) => { for (const tab of stream.tabs) tab.port.postMessage(message); };

const opened = (address) => {
  const stream = { address, source: new EventSource(address), tabs: new Set(), texts: new Map() };
  stream.source.onopen = () => tell(stream, { kind: "open" });
  stream.source.onerror = () => {
    const { readyState } = stream.source;
    if (readyState === EventSource.CLOSED) streams.delete(address);  // its tabs ask again
    tell(stream, { kind: "error", readyState });
  };
  streams.set(address, stream);
  return stream;
};

const hear = (stream, tab, name) => {
  if (!stream.texts.has(name)) {
    stream.texts.set(name, "");
    stream.source.addEventListener(name, ({ data }) => {
      stream.texts.set(name, data);
      tell(stream, { kind: "event", name, text: data });
    });
  }
  // The stream began before this tab: what the tab missed is as news to it.
  if (stream.source.readyState === EventSource.OPEN) tab.port.postMessage({ kind: "event", name, text: stream.texts.get(name) });
};

const join = (tab) => {
  const stream = streams.get(tab.address) ?? opened(tab.address);
  tab.heard = Date.now();
  if (stream.tabs.has(tab)) return;
  stream.tabs.add(tab);
  if (stream.source.readyState === EventSource.OPEN) tab.port.postMessage({ kind: "open" });
  for (const name of tab.names) hear(stream, tab, name);
};

const leave = (tab) => {
  const stream = streams.get(tab.address);
  if (!stream?.tabs.delete(tab) || stream.tabs.size) return;
  stream.source.close();
  streams.delete(tab.address);
};

addEventListener("connect", ({ ports: [port] }) => {
  const tab = { port, address: "", names: new Set(), heard: 0 };
  port.onmessage = ({ data }) => {
    if (data.kind === "open") tab.address = data.address;
    if (data.kind === "leave") leave(tab);
    else join(tab);
    if (data.kind !== "hear") return;
    tab.names.add(data.name);
    hear(streams.get(tab.address), tab, data.name);
  };
});

setInterval(() => {
  const tabs = [...streams.values()].flatMap((stream) => [...stream.tabs]);
  for (const tab of tabs) if (Date.now() - tab.heard > SILENT_MS) leave(tab);
}, 60000);
