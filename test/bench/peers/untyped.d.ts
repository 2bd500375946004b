/** What of untyped packages is used here. */
declare module 'redlock' {
  interface Lock {
    extend(ttlMs: number): Promise<Lock>;
    unlock(): Promise<void>;
  }
  class Redlock {
    static readonly LockError: new () => Error;
    constructor(clients: readonly unknown[], options?: { readonly retryCount?: number });
    lock(resource: string, ttlMs: number): Promise<Lock>;
    on(event: 'clientError', listener: (error: unknown) => void): this;
  }
  export default Redlock;
}
