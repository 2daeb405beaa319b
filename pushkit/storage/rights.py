"""What a role may do on a PostgreSQL server, and the GRANT for what it may not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import asyncpg
from asyncpg.pool import PoolConnectionProxy

__all__ = ["missing_rights"]

# The schema of the tables, also one that the role may not look into: that one is left out when
# PostgreSQL looks a name up. Where there are no tables yet, the schema that would get them.
_SCHEMA = """
    SELECT quote_ident(current_user) AS role, oid, quote_ident(nspname) AS name,
        pg_get_userbyid(nspowner) AS owner, has_schema_privilege(oid, 'USAGE') AS is_open,
        has_schema_privilege(oid, 'CREATE') AS may_create, EXISTS (SELECT FROM pg_class
        WHERE relnamespace = pg_namespace.oid AND relname = 'pushkit_schema') AS has_tables
    FROM unnest(string_to_array(current_setting('search_path'), ',')) WITH ORDINALITY
        AS named (name, place)
    JOIN pg_namespace ON nspname = replace(trim(BOTH '" ' FROM named.name), '$user', current_user)
    ORDER BY has_tables DESC, is_open DESC, place LIMIT 1
"""
_TABLES = """
    SELECT relname AS name, format('%I.%I', relnamespace::regnamespace::text, relname) AS full_name,
        pg_get_userbyid(relowner) AS owner, pg_has_role(relowner, 'USAGE') AS is_own,
        ARRAY(SELECT privilege FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE'])
            WITH ORDINALITY AS each (privilege, place)
            WHERE NOT has_table_privilege(oid, privilege) ORDER BY place) AS lacks
    FROM pg_class WHERE relnamespace = $1 AND relname = ANY($2::text[]) ORDER BY relname
"""
_FUNCTIONS = """
    SELECT oid::regprocedure::text AS name, pg_get_userbyid(proowner) AS owner,
        pg_has_role(proowner, 'USAGE') AS is_own, has_function_privilege(oid, 'EXECUTE') AS may_call
    FROM pg_proc WHERE pronamespace = $1 AND proname LIKE 'pushkit%' ORDER BY 1
"""
_LANGUAGES = """
    SELECT lanname AS name FROM pg_language
    WHERE lanname IN ('sql', 'plpgsql') AND NOT has_language_privilege(oid, 'USAGE')
"""
_READING = {"SELECT"}
_WRITING = {"SELECT", "INSERT", "UPDATE", "DELETE"}
_OF_ALL = ("pushkit_schema", "pushkit_writers")  # tables that components share


async def missing_rights(
    connection: asyncpg.Connection | PoolConnectionProxy,
    own_tables: Collection[str],
    *,
    reads_only: bool,
    migrates: bool,
) -> str | None:
    """Return which rights the role of a connection lacks, and who gives them how; None for none.

    Args:
        connection: The role's.
        own_tables: The names of the component's tables, also of those that do not exist.
        reads_only: Whether it only reads.
        migrates: Whether it creates or changes tables.
    """
    schema = await connection.fetchrow(_SCHEMA)
    if schema is None:
        path = await connection.fetchval("SELECT current_setting('search_path')")
        return (
            f"no schema of the search_path ({path}) exists: create one, or name another in the DSN"
            " (?search_path=…)"
        )
    role = schema["role"]
    tables = await connection.fetch(_TABLES, schema["oid"], [*_OF_ALL, *own_tables])
    functions = await connection.fetch(_FUNCTIONS, schema["oid"])
    if migrates:
        for each in (*tables, *functions):
            if not each["is_own"] and each["name"] not in _OF_ALL:
                return (
                    f"a migration changes {each['name']}, which belongs to the role"
                    f" {each['owner']}: found the role {role}; run `migrate` as the owner"
                )
    grants: list[str] = []
    on_schema = {"USAGE": not schema["is_open"], "CREATE": migrates and not schema["may_create"]}
    if lacks := ", ".join(name for name, is_missing in on_schema.items() if is_missing):
        grants.append(f"{lacks} ON SCHEMA {schema['name']}")
    needed = _READING if reads_only else _WRITING
    needed_of_all = _WRITING - {"DELETE"} if migrates else _READING
    tables_of = defaultdict[str, list[str]](list)  # by what is missing
    for each in tables:
        needs = needed_of_all if each["name"] in _OF_ALL else needed
        tables_of[", ".join(x for x in each["lacks"] if x in needs)].append(each["full_name"])
    grants += [f"{lacks} ON {', '.join(names)}" for lacks, names in tables_of.items() if lacks]
    if names := [each["name"] for each in functions if not each["may_call"]]:
        grants.append(f"EXECUTE ON FUNCTION {', '.join(names)}")
    if migrates:
        languages = [each["name"] for each in await connection.fetch(_LANGUAGES)]
        grants += [f"USAGE ON LANGUAGE {each}" for each in languages]
    if not grants:
        return None
    return f"the role {role} lacks rights; have the owner run: " + "; ".join(
        f"GRANT {each} TO {role}" for each in grants
    )
