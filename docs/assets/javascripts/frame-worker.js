// Lets the search run when the site is opened from the file system, where browsers
// start no workers. There, this class takes the place of Worker: it runs the script in
// a hidden frame, which gets each message as an event, as a worker would.

class FrameWorker extends EventTarget {
  onmessage = null;
  onerror = null;
  onmessageerror = null;
  #frame = document.createElement("iframe");
  #ready;

  constructor(url) {
    super();
    this.#frame.hidden = true;
    document.body.append(this.#frame);
    const inside = this.#frame.contentWindow;
    inside.document.open();
    inside.document.close();
    inside.postMessage = (data) => this.#receive(new MessageEvent("message", { data }));
    this.#ready = this.#load(inside, new URL(url, location));
  }

  postMessage(data) {
    const inside = this.#frame.contentWindow;
    this.#ready.then(() => {
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    });
  }

  terminate() {
    this.#frame.remove();
  }

  #load(inside, url) {
    return new Promise((loaded) => {
      const script = inside.document.createElement("script");
      script.src = url.href;
      script.onload = loaded;
      script.onerror = () => this.#receive(new ErrorEvent("error"));
      inside.document.documentElement.append(script);
    });
  }

  #receive(event) {
    this.dispatchEvent(event);
    this[`on${event.type}`]?.(event);
  }
}

if (location.protocol === "file:") {
  window.Worker = FrameWorker;
}
