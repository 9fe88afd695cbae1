// What a program puts out on a plain terminal, as lines: it may begin a line again, go back in
// it and clear the rest of it. All else that moves or colours things is left out.

export interface PaperLine {
  number: number;
  text: string;
}

const MOST_LINES = 1000;
const MOST_COLUMNS = 4000;
const TAB = 8;
// A part of a sequence at the end of what has come may be up to this long.
const LONGEST_SEQUENCE = 256;
/* eslint-disable no-control-regex */
const TITLE = /^\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)/;
const MOVE = /^\x1b\[[0-9;?<=>]*[ -/]*([@-~])/;
const SHORT = /^\x1b[ -/]*[0-OQ-WYZ\\`-~]/;
const PLAIN = /^[^\x00-\x1f\x7f]+/;
/* eslint-enable no-control-regex */

export class Paper {
  private written: PaperLine[] = [{ number: 0, text: "" }];
  private column = 0;
  // What has come and was not looked at yet.
  private rest = "";

  write(text: string): void {
    this.rest += text;
  }

  /** A line of ours, between those of the program. */
  note(text: string): void {
    this.read();
    this.rest = "";
    if (this.current.text !== "") this.newLine();
    this.put(text);
    this.newLine();
  }

  /** The last lines; the one that is being written comes last. */
  lines(): readonly PaperLine[] {
    this.read();
    return this.written;
  }

  private read(): void {
    let left = lastLines(this.rest);
    if (left.length < this.rest.length) this.newLine();
    this.rest = "";
    while (left !== "") {
      const plain = PLAIN.exec(left)?.[0];
      const length = plain ? this.put(plain) : this.control(left);
      if (length === 0) {
        // Its end has not come yet.
        this.rest = left;
        return;
      }
      left = left.slice(length);
    }
  }

  private get current(): PaperLine {
    return this.written.at(-1)!;
  }

  private put(text: string): number {
    let left = text;
    while (left !== "") {
      if (this.column >= MOST_COLUMNS) this.newLine();
      const part = left.slice(0, MOST_COLUMNS - this.column);
      const old = this.current.text;
      const before = old.slice(0, this.column).padEnd(this.column);
      this.change(before + part + old.slice(this.column + part.length));
      this.column += part.length;
      left = left.slice(part.length);
    }
    return text.length;
  }

  /** What a control character at the begin of `text` does; how long it is. */
  private control(text: string): number {
    switch (text[0]) {
      case "\n":
        this.newLine();
        break;
      case "\r":
        this.column = 0;
        break;
      case "\b":
        this.column = Math.max(0, this.column - 1);
        break;
      case "\t":
        this.column += TAB - (this.column % TAB);
        break;
      case "\x1b":
        return this.sequence(text);
    }
    return 1;
  }

  private sequence(text: string): number {
    const move = MOVE.exec(text);
    if (move?.[1] === "K") this.change(this.current.text.slice(0, this.column));
    const found = move ?? TITLE.exec(text) ?? SHORT.exec(text);
    if (found) return found[0].length;
    return text.length < LONGEST_SEQUENCE ? 0 : 1;
  }

  private newLine(): void {
    this.written.push({ number: this.current.number + 1, text: "" });
    if (this.written.length > MOST_LINES) this.written = this.written.slice(-MOST_LINES / 2);
    this.column = 0;
  }

  private change(text: string): void {
    this.written[this.written.length - 1] = { number: this.current.number, text };
  }
}

/** What is left of so much that the lines before would be gone at once. */
function lastLines(text: string): string {
  let at = text.length;
  for (let count = 0; count < MOST_LINES; count += 1) {
    at = text.lastIndexOf("\n", at - 1);
    if (at <= 0) return text;
  }
  return text.slice(at + 1);
}
