import { mkdir, writeFile } from 'node:fs/promises';
import { tmpdir, userInfo } from 'node:os';
import { join } from 'node:path';

/** The port through which jobs send mail. A provider's client takes the key as its idempotency key. */
export interface Mail {
  send(message: Message, signal: AbortSignal): Promise<void>;
}

export interface Message {
  /** A second message with this key is dropped. */
  readonly key: string;
  readonly to: string;
  readonly body: string;
}

/** A file a message, named by its key: the local stand-in for a provider that deduplicates. */
export function fileMail(folder: string = join(tmpdir(), `cronce-mail-${userInfo().uid}`)): Mail {
  return {
    async send(message, signal) {
      await mkdir(folder, { recursive: true });
      const file = join(folder, `${encodeURIComponent(message.key)}.json`);
      await writeFile(file, JSON.stringify(message), { flag: 'wx', signal }).catch((error: unknown) => {
        if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
      });
    },
  };
}
