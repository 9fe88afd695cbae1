// A shell beside a running job, on a plain terminal: a line is typed, and what comes is text.
// Terminal emulators put styles into the page, which its content security policy refuses.

import { type RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import type { Schemas } from "../api/client";
import type { FromAgent } from "../stream/frames";
import { JobStream } from "../stream/job-stream";
import { Paper, type PaperLine } from "../stream/paper";
import { ActionButton, Empty, ErrorNote } from "../ui/parts";

const SHELL = "if command -v bash > /dev/null; then exec bash --noediting -i; else exec sh -i; fi";
const TERMINAL = { terminal: "dumb", rows: 24, columns: 100 };
const INTERRUPT = "\x03";
const END_OF_INPUT = "\x04";
/** What the kernel takes as one line of a terminal. */
const MOST_BYTES = 4095;
const MOST_FORMER = 100;
const DRAW_AGAIN_MS = 100;

export function Shell({ job }: { job: Schemas["Job"] }) {
  const shell = useShell(job.id);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (shell.isOpen) input.current?.focus();
  }, [shell.isOpen]);
  return (
    <div class="stack">
      <div class="row wrap">
        {shell.isOpen ? (
          <>
            <button type="button" class="button" onClick={() => shell.type(INTERRUPT)}>
              Interrupt (Ctrl-C)
            </button>
            <button type="button" class="button" onClick={() => shell.type(END_OF_INPUT)}>
              End of input (Ctrl-D)
            </button>
            <button type="button" class="button danger" onClick={shell.close}>
              End the shell
            </button>
          </>
        ) : (
          <ActionButton act={shell.open} onError={shell.setError} kind="primary">
            Start a shell
          </ActionButton>
        )}
        <span class="quiet small">
          It runs beside the program, with its folder and its GPUs, and ends when you leave this
          tab.
        </span>
      </div>
      <ErrorNote error={shell.error} />
      {shell.lines.length > 1 || shell.isOpen ? (
        <Output lines={shell.lines} />
      ) : (
        <Empty>
          For programs that fill a screen, type{" "}
          <code>gpuyard exec -t {job.id.slice(-8)} -- bash</code> in a terminal.
        </Empty>
      )}
      {shell.isOpen && <Typing input={input} onType={shell.type} onError={shell.setError} />}
    </div>
  );
}

/** Follows the end, unless somebody has scrolled up. */
function Output({ lines }: { lines: readonly PaperLine[] }) {
  const box = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  useLayoutEffect(() => {
    if (follows.current) box.current!.scrollTop = box.current!.scrollHeight;
  });
  function scrolled(): void {
    const { scrollTop, clientHeight, scrollHeight } = box.current!;
    follows.current = scrollTop + clientHeight >= scrollHeight - 4;
  }
  return (
    <div
      ref={box}
      class="log terminal"
      role="log"
      aria-label="Output of the shell"
      tabIndex={0}
      onScroll={scrolled}
    >
      {lines.map(({ number, text }) => (
        <div key={number} class="line">
          {text}
        </div>
      ))}
    </div>
  );
}

interface TypingProps {
  input: RefObject<HTMLInputElement>;
  onType: (text: string) => void;
  onError: (error: Error | null) => void;
}

function Typing({ input, onType, onError }: TypingProps) {
  const [line, setLine] = useState("");
  // Those that were typed before, and which of them is shown; at its end, it is a new one.
  const former = useRef<string[]>([]);
  const at = useRef(0);
  function submit(event: Event): void {
    event.preventDefault();
    const text = `${line}\n`;
    if (new TextEncoder().encode(text).length > MOST_BYTES) {
      onError(new Error(`A terminal takes lines of ${MOST_BYTES - 1} bytes at most.`));
      return;
    }
    if (line) former.current = [...former.current, line].slice(-MOST_FORMER);
    at.current = former.current.length;
    onType(text);
    setLine("");
  }
  function pressed(event: KeyboardEvent): void {
    const { selectionStart, selectionEnd } = event.currentTarget as HTMLInputElement;
    if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const step = event.key === "ArrowUp" ? -1 : 1;
      at.current = Math.min(Math.max(at.current + step, 0), former.current.length);
      setLine(former.current[at.current] ?? "");
    } else if (event.ctrlKey && event.key === "c" && selectionStart === selectionEnd) {
      onType(INTERRUPT);
      setLine("");
    } else if (event.ctrlKey && event.key === "d" && line === "") {
      onType(END_OF_INPUT);
    } else {
      return;
    }
    event.preventDefault();
  }
  return (
    <form class="row" aria-label="Type to the shell" onSubmit={submit}>
      <input
        ref={input}
        class="mono wide"
        aria-label="A line for the shell"
        placeholder="nvidia-smi"
        autocomplete="off"
        autocapitalize="off"
        spellcheck={false}
        value={line}
        onInput={(event) => setLine(event.currentTarget.value)}
        onKeyDown={pressed}
      />
      <button class="button primary">Send</button>
    </form>
  );
}

interface OpenShell {
  isOpen: boolean;
  lines: readonly PaperLine[];
  error: Error | null;
  setError: (error: Error | null) => void;
  open: () => Promise<void>;
  type: (text: string) => void;
  close: () => void;
}

function useShell(job: string): OpenShell {
  const paper = useRef(new Paper());
  const stream = useRef<JobStream | null>(null);
  const isGone = useRef(false);
  const [isOpen, setOpen] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const draw = useDrawing();
  function close(): void {
    stream.current?.close();
  }
  useEffect(
    () => () => {
      isGone.current = true;
      close();
    },
    [],
  );

  async function open(): Promise<void> {
    const words = new TextDecoder();
    const opened = await JobStream.open(`/api/v1/jobs/${job}/exec`, {
      onFrame: (frame) => {
        show(frame, words, paper.current, setError);
        draw();
      },
      onEnd: (fault) => {
        setOpen(false);
        if (fault) setError(fault);
      },
    });
    if (isGone.current) {
      opened.close();
      return;
    }
    opened.send({ type: "RunCommand", command: ["sh", "-c", SHELL], ...TERMINAL });
    stream.current = opened;
    setOpen(true);
  }

  function type(text: string): void {
    try {
      stream.current?.type(text);
      setError(null);
    } catch (fault) {
      setError(fault as Error);
    }
  }

  return { isOpen, lines: paper.current.lines(), error, setError, open, type, close };
}

function show(
  frame: FromAgent,
  words: TextDecoder,
  paper: Paper,
  onError: (error: Error) => void,
): void {
  switch (frame.type) {
    case "Output":
    case "ErrorOutput":
      paper.write(words.decode(frame.data, { stream: true }));
      break;
    case "Exited":
      paper.note(
        frame.with_job
          ? "(The job has ended, and the shell with it.)"
          : `(The shell has ended with exit code ${frame.code}.)`,
      );
      break;
    case "NotStarted":
      onError(new Error(`The shell was not started: ${frame.message}`));
      break;
  }
}

/** Draws again, but not with each of the many parts that a busy program puts out. */
function useDrawing(): () => void {
  const [, draw] = useState(0);
  const timer = useRef<ReturnType<typeof setTimeout> | 0>(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  return () => {
    if (timer.current) return;
    timer.current = setTimeout(() => {
      timer.current = 0;
      draw((count) => count + 1);
    }, DRAW_AGAIN_MS);
  };
}
