// The line to the studio: requests with answers, events, files. It connects again by itself and keeps the visitor's name.
const KEY = "nsde-visitor";

function decode(data) {
  if (typeof data === "string") return JSON.parse(data);
  const size = new DataView(data).getUint32(0, true);
  const message = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, size)));
  let at = 4 + size;
  for (const [name, kind, shape] of message.arrays) {
    const count = shape.reduce((a, b) => a * b, 1);
    const Kind = kind === "uint8" ? Uint8Array : Float32Array;
    message[name] = { data: new Kind(data, at, count), shape };
    const bytes = count * Kind.BYTES_PER_ELEMENT;
    at += bytes + ((8 - (bytes % 8)) % 8);
  }
  delete message.arrays;
  return message;
}

export class Link {
  constructor({ onHello, onEvent, onState }) {
    Object.assign(this, { onHello, onEvent, onState });
    this.pending = new Map();
    this.number = 0;
    this.wait = 400;
    this.visitor = sessionStorage.getItem(KEY);
    this.connect();
  }

  connect() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}/socket`);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    this.onState("Connecting…");
    socket.onopen = () => socket.send(JSON.stringify({ visitor: this.visitor }));
    socket.onmessage = ({ data }) => this.take(decode(data));
    socket.onclose = (event) => {
      for (const { reject } of this.pending.values()) reject(new Error("The connection was lost."));
      this.pending.clear();
      this.onState(event.reason || "The studio does not answer. Trying again…");
      setTimeout(() => this.connect(), this.wait);
      this.wait = Math.min(this.wait * 1.6, 5000);
    };
  }

  take(message) {
    if (message.hello) {
      this.visitor = message.hello.visitor;
      sessionStorage.setItem(KEY, this.visitor);
      this.wait = 400;
      this.onState("");
      this.onHello(message.hello);
    } else if (message.event) {
      this.onEvent(message);
    } else {
      const waiting = this.pending.get(message.id);
      this.pending.delete(message.id);
      if (!waiting) return;
      if (message.error) waiting.reject(new Error(message.error));
      else waiting.resolve(message);
    }
  }

  get open() {
    return this.socket.readyState === WebSocket.OPEN;
  }

  ask(tab, action, given = {}) {
    if (!this.open) return Promise.reject(new Error("The studio does not answer. Is it still running?"));
    const id = ++this.number;
    return new Promise((resolve, reject) => {
      this.pending.set(id, { resolve, reject });
      this.socket.send(JSON.stringify({ id, tab, do: action, with: given }));
    });
  }

  async upload(tab, file) {
    const headers = { "X-Studio-Visitor": this.visitor };
    const place = `/upload/${tab}?name=${encodeURIComponent(file.name)}`;
    const answer = await fetch(place, { method: "POST", headers, body: file });
    const made = await answer.json();
    if (made.error) throw new Error(made.error);
    return made;
  }

  async download(tab, what) {
    const headers = { "X-Studio-Visitor": this.visitor };
    const answer = await fetch(`/download/${tab}?what=${encodeURIComponent(what)}`, { headers });
    if (!answer.ok) throw new Error((await answer.json()).error);
    const name = /filename="([^"]+)"/.exec(answer.headers.get("content-disposition"))[1];
    const anchor = document.createElement("a");
    anchor.href = URL.createObjectURL(await answer.blob());
    anchor.download = name;
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), 10_000);
    return name;
  }
}
