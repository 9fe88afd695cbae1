// Commands as people type them, and as lists of words.

const NEEDS_SHELL = /[|&;<>()$`*?[#~\n]/;

/** The words of a command, without a shell where it needs none. What is added behind
 * them, such as the arguments of a resume, reaches the command in either case. */
export function wordsOf(command: string): string[] {
  return split(command) ?? ["sh", "-c", `${command} "$@"`, "sh"];
}

/** The command that these words are. */
export function commandOf(words: readonly string[]): string {
  const [program, option, script] = words;
  const isOfShell = program === "sh" && option === "-c" && words.length === 4;
  if (isOfShell && script!.endsWith(' "$@"')) return script!.slice(0, -' "$@"'.length);
  return words.map(quoted).join(" ");
}

export function quoted(word: string): string {
  return /^[\w./=:@%+{}-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** The words, with quotation marks as in a shell; null if only a shell understands it. */
function split(command: string): string[] | null {
  const words: string[] = [];
  let word: string | null = null;
  let quote = "";
  for (let at = 0; at < command.length; at++) {
    const letter = command[at]!;
    if (quote) {
      if (letter === quote) quote = "";
      else if (quote === '"' && /[$`\\]/.test(letter)) return null;
      else word += letter;
    } else if (letter === "'" || letter === '"') {
      quote = letter;
      word ??= "";
    } else if (letter === "\\") {
      word = (word ?? "") + (command[++at] ?? "");
    } else if (letter === " " || letter === "\t") {
      if (word !== null) words.push(word);
      word = null;
    } else {
      if (NEEDS_SHELL.test(letter)) return null;
      word = (word ?? "") + letter;
    }
  }
  if (quote) return null;
  if (word !== null) words.push(word);
  // NAME=VALUE before a program is the shell's.
  return words[0]?.includes("=") ? null : words;
}
