/**
 * A handler whose errors are reported under their own names. Lambda reads an error's `name`, others its class, which the
 * bundle has minified, or the head of its stack, which was written before it had a name.
 */
export function reported<A extends unknown[], R>(
  handler: (...given: A) => Promise<R>,
): (...given: A) => Promise<R> {
  return async (...given) =>
    handler(...given).catch((error: unknown) => {
      if (error instanceof Error) nameAll(error);
      throw error;
    });
}

function nameAll(error: Error): void {
  const { name, stack = '' } = error;
  Object.defineProperty(error, 'constructor', { value: { name }, configurable: true });
  error.stack = stack.replace(/^\w*(?=:|\n|$)/, name);
}
