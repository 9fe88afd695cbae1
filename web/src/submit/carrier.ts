// A program whose files travel with the job: on its standard input, as JSON.
//
// The job begins by writing them into its own working folder, and then becomes the
// program itself. So it runs wherever a job can run, and needs nothing there but Python.

const CARRIER = `import base64, json, os, sys
given = json.load(sys.stdin)
files = {path: text.encode() for path, text in given["text"].items()}
files |= {path: base64.b64decode(data) for path, data in given["base64"].items()}
for path, content in files.items():
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
os.execvp(sys.argv[1], sys.argv[1:])
`;
const FIRST_WORDS = ["python3", "-c", CARRIER];

/** The files of a program: texts by path, and what is no text in base64. */
export interface Files {
  text: Record<string, string>;
  base64: Record<string, string>;
}

export const NO_FILES: Files = { text: {}, base64: {} };

export function isEmpty({ text, base64 }: Files): boolean {
  return Object.keys(text).length + Object.keys(base64).length === 0;
}

/** The command and the input of a job that takes `files` with it. */
export function carried(words: string[], files: Files): { command: string[]; stdin?: string } {
  if (isEmpty(files)) return { command: words };
  return { command: [...FIRST_WORDS, ...words], stdin: JSON.stringify(files) };
}

/** What `carried` was given. */
export function uncarried(
  command: readonly string[],
  stdin: string | null | undefined,
): { words: string[]; files: Files } {
  const isCarrier = FIRST_WORDS.every((word, at) => command[at] === word);
  if (!isCarrier || !stdin) return { words: [...command], files: NO_FILES };
  return {
    words: command.slice(FIRST_WORDS.length),
    files: JSON.parse(stdin) as Files,
  };
}
