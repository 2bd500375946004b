/**
 * What a terminal is shown. Names, messages and outputs are data of anyone's: a control code in them would move the
 * cursor, recolour or rename the window, or let a text read the other way round.
 */

/** C0, DEL and C1; what turns the direction of a text; line ends that are none of ASCII; halves of characters. */
const unseen = /[\p{Cc}\p{Bidi_Control}\p{Zl}\p{Zp}\p{Cs}\u{feff}]/gu;

/** The text in one line, with every character that a terminal would obey as its escape, such as `\u001b`. */
export function visible(text: string): string {
  return text.replace(unseen, (code) => `\\u${code.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

/** An error's message in one line: what comes after its first is detail. */
export function lineOf(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error);
  return visible(text.split('\n', 1).join());
}
