// What the API answers, as docs/api.md describes it: the members that the console shows.

export type ShellState = "available" | "ready" | "busy" | "unrecoverable";
export type RunStatus = "running" | "completed" | "killed" | "lost";

export interface Run {
  run_id: string;
  session_id: string;
  command: string;
  description: string | null;
  status: RunStatus;
  cause: string | null;
  exit_code: number | null;
  signal: number | null;
  error: string | null;
  stdout: string | null;
  original_stdout_size: number;
  original_stderr_size: number;
  cursor: number;
  streams: string;
  working_directory: string | null;
  background_pids: number[];
  awaiting_input: boolean;
  restored: boolean;
  started_at: string;
  duration: number;
  usage: { cpu_seconds: number; peak_memory_mb: number; processes_left: number };
  warnings?: string[];
  typed_by_person?: boolean;
  changes?: RunChange[];
  changes_truncated?: boolean;
  changes_error?: string;
}

export interface RunChange {
  path: string;
  kind: "created" | "modified" | "deleted";
  size: number;
}

export interface Shell {
  session_id: string;
  state: ShellState;
  working_directory: string | null;
  run: Run | null;
  last_run_id: string | null;
  created_at: string;
  expires_at: string | null;
}

export interface Usage {
  session_id: string;
  cpu_percent: number;
  memory_mb: number;
  processes: number;
}

export interface Metadata {
  operating_system: string;
  user: string;
  cpus: number;
  memory_mb: number;
  version: string;
  workspace_directory: string;
  limits: { cpu_percent: number; memory_mb: number; max_sessions: number };
  allowed_directories: string[];
}

export interface Port {
  port: number;
  address?: string;
  pid: number;
  command?: string;
  session_id: string;
  run_id?: string | null;
}

export interface FileChange {
  path: string;
  operation: string;
  size: number | null;
  etag: string | null;
}

export interface Screen {
  run_id: string;
  rows: number;
  cols: number;
  lines: string[];
  cursor: { row: number; col: number; visible: boolean };
  title: string;
  alternate: boolean;
}

export type DaemonEvent =
  | { type: "snapshot"; data: { state: ShellState; shells: Shell[]; runs: Run[] } }
  | { type: "state"; data: { session_id: string; state: ShellState; previous: ShellState } }
  | { type: "run_started" | "run_awaiting_input" | "run_warning" | "run_ended"; data: Run }
  | { type: "session_opened" | "session_closed"; data: { session_id: string; reason: string } }
  | { type: "file_changed"; data: FileChange }
  | { type: "port_opened" | "port_closed"; data: Port }
  | { type: "resources"; data: { shells: Usage[] } }
  | { type: "gap"; data: { after: number | null } };
