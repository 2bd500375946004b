import { writeFile } from 'node:fs/promises';

/** Writes a file that is not there; @returns whether it was not. What is there is left as it is. */
export async function writeNew(file: string, text: string): Promise<boolean> {
  try {
    await writeFile(file, text, { flag: 'wx' });
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  }
}
