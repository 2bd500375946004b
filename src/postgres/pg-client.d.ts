/** A part of `pg` for which its types have no name. */
declare module 'pg/lib/client' {
  import type { Client } from 'pg';
  const constructor: typeof Client;
  export default constructor;
}
