/**
 * How often a client waits for a network: once for each connection, and once whenever it hears from the server after it has
 * spoken. What it never waits for, such as what comes after its last words, is heard after its work is over, and counted
 * too late to matter.
 */
export interface Turns {
  connection(): { spoke(): void; heard(): void };
  total(): number;
}

export function turnsOf(): Turns {
  let total = 0;
  return {
    connection() {
      total += 1;
      let waits = false;
      return {
        spoke: () => void (waits = true),
        heard: () => {
          if (waits) total += 1;
          waits = false;
        },
      };
    },
    total: () => total,
  };
}
