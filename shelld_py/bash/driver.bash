# The bash side of the protocol: what bash evaluates around the commands. How it works is said in driver.py, which
# takes the sections below apart and fills in what stands between at signs. Each section is a script of its own; lines
# that begin with a number sign do not reach bash. `__shelld` becomes a random name, which is unset before a command
# begins: none gives it attributes by chance. Names of builtins follow `\builtin`, for a command may have defined
# functions of their names.
#
# Descriptors of bash in the loop. All but the bell are copies that bash has saved in a redirection: they are
# close-on-exec, so no program inherits them, and nothing has to be closed around a command.
#   0 the terminal   244 texts of commands   248 reports   249 the bell   251 /dev/null
#   246 standard error, while it is put away
#
# shellcheck shell=bash
# Text is substituted before bash sees it, and `$?` after a redirected group is what is wanted:
# shellcheck disable=SC2016,SC2034,SC2154,SC2320
# DIRSTACK is bash's own array, indexed beyond its end; the one variable is scalar and array in turn:
# shellcheck disable=SC2128,SC2178
# What follows the end of a section is another script:
# shellcheck disable=SC2317,SC2329

### start: what makes a fresh bash ours
# No history and no prompt; but PS1 is not empty, for scripts look at it. execfail: a failing `exec` ends a shell whose
# `interactive` is 0, as it is in the loop.
\builtin unset -v HISTFILE PROMPT_COMMAND PS0
\builtin history -d -1 2>|/dev/null
\builtin set +o history
\builtin shopt -s execfail
PS1='\[\]'
\builtin trap -- @exit_action@ EXIT

### restart: what a bash that comes back reads before `start`
# What it sets by itself goes, and what it had comes. While it starts, its standard error is the terminal: that is where
# bash looks for job control.
if [[ -e /proc/$$/fd/246 ]]; then \exec 2>&246 246>&-; else \exec 2>&-; fi
\builtin unset -v HOME OLDPWD PATH SHELL TERM
{ \builtin . @scratch@; } >|/dev/null 2>&1
\builtin set +t

### loop_line: what comes behind the loop is executed after `return`, and not after an interrupt
# From version 5.3 on, bash says nothing of a command that died of a signal while it sources a file, but with
# BASH_COMPAT=5.2 when it begins to. The loop gives the user's own back.
 (( BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 503 )) || { __shelld=(idle "${BASH_COMPAT-}"); BASH_COMPAT=5.2; }; \builtin . @loop@; { __shelld="returned $?"; } >|/dev/null 2>&1

### loop: sourced, for bash's variable `interactive` is 0 then: it names neither jobs nor `exit`
# mapfile's line gets the number 0: the command comes behind one line of the driver's, so its lines are counted from 1.
# A LINENO that a command has made readonly cannot be set. What a command has opened at the driver's numbers is closed.
# The redirections `240<FILE N<... 240<&N-` leave the file at N + 1, as bash's saved copy of descriptor 240. What is
# redirected last is undone first: an interrupted loop gets the boot pipe back as its descriptor 0 before it loses the
# bell, and before anything that a command may have closed.
# Its lines are parsed without aliases: one may have the name of a reserved word.
\builtin enable . @builtins@
\builtin shopt -q expand_aliases && __shelld[2]=s || __shelld[2]=u; \builtin shopt -u expand_aliases
[[ ! -e /proc/$$/fd/246 ]] || \exec 2>&246 246>&-
\builtin printf '@tag@\0B\0' >|@reports@
{ DIRSTACK[999999999]=; } 2>|/dev/null
if [[ ${__shelld-} != idle ]]; then \builtin :
elif [[ ${__shelld[1]-} ]]; then BASH_COMPAT=${__shelld[1]}; elif [[ ${__shelld[1]+x} ]]; then \builtin unset -v BASH_COMPAT; fi
[[ ! ${DIRSTACK+x}${DIRSTACK[*]+x} || ${DIRSTACK@a} != *A* ]] || \builtin unset -v DIRSTACK
[[ ${LINENO+x} && ${LINENO@a} != *r* ]] && __shelld[1]='LINENO=0,1000000000' || __shelld[1]=1000000000
\builtin shopt "-${__shelld[2]}" expand_aliases
__shelld=(: "${__shelld[1]}" @callback@)
\exec 240>&- 243>&- 244>&- 245>&- 247>&- 248>&- 249>&- 250>&- 251>&-
\builtin mapfile -d '' -O "$((__shelld[1]))" -c 1 -u 249 -C "${__shelld[2]}" DIRSTACK 240<@text@ 243<>/dev/null 240<&243- 250>|@reports@ 240<&250- 247<>/dev/null 240<&247- 240<&- 249<@bell@ 0<>@terminal@

### callback: what mapfile evaluates for each byte of the bell
# Each word costs: bash parses all of this for each command. Unfinished text before it can have left the parser in a
# state in which it knows no reserved words, so it begins with none. The text takes the place of `:`, which the variable
# holds between commands; where it cannot be loaded, `:` is evaluated, and the report says so. The bell is closed around
# the command: that tells the gate that the command is being executed. mapfile appends ` INDEX BYTE`: to a command that
# does not look at them, and is mostly not executed. The report is parsed before the text is: then_ran says why.
 \builtin mapfile -n1 -O0 -u244 -d '' __shelld;
\builtin eval "$__shelld" 249<&-; @report_ran@ || \builtin . @script@ @tag@leave

### summary: what is said first, for `$?`
__shelld="$? $- ${!-0} ${__shelld+=$__shelld}"

### nothing: in place of the summary, where that was made before
\builtin :

### report: of a command, of the prompt
# No trap of the user may write into it: what DEBUG prints before the traps are listed goes to /dev/null, with the group.
# Sizes are bounded; a path of that length is none. All traps are listed, for bash looks long for each name.
# `||` behind it keeps `set -e` from ending the shell where a descriptor of the driver is gone. Aliases of the names `{`
# and `[[` would take this group from the next command.
{ @first@; \builtin trap -p >&248;
\builtin trap - DEBUG ERR RETURN; \builtin set +xv;
\builtin printf '@tag@\0@kind@\0%.64s\0%.65536s\0%.65536s\0%.64s\0' "$__shelld" "${PWD-}" "${OLDPWD-}" "${PS1-}${PROMPT_COMMAND[*]+x}${PS0+x}" >&248;
\builtin unalias '{' '[[';
@then@; } >&251 2>&251

### then_ran: a DIRSTACK that the command has unset leaves mapfile with memory that is freed, and is left
# So is one that is a scalar or associative now, which takes an unset: neither has this last element. So is a loop that
# has lost its texts. The next command is loaded and begun with what is enabled here; `:` stands for any name of a
# builtin, and nothing for none.
# bash 5.2 counts the quotes that are open: of a text that ends within `$(` one too few (pop_delimiter in parse.y).
# With the next quote that it parses it would write before that memory, and die of it sooner or later. Behind a plain
# syntax error it counts anew.
[[ $__shelld == 0* ]] || \builtin eval \);
__shelld=:; \builtin enable eval mapfile unset unalias "${DIRSTACK[-1-0*@digits@]+:}" <&244

### then_prompt: no prompt may be seen, and none of its commands runs
__shelld=(idle); \builtin unset -v PROMPT_COMMAND PS0; \builtin printf -v PS1 %s '\[\]'

### prompt_line: waits behind the loop's
# While a file is sourced, traps on DEBUG and RETURN that were set before are hidden, so they are listed here.
 { @summary@; \builtin trap -p DEBUG RETURN >|@reports@; \builtin trap - DEBUG RETURN; \builtin set +xv; } >|/dev/null 2>&1; \builtin . @script@ @tag@prompt

### prompt: sourced by that line
{ @report_prompt@ || \builtin :; } 251<>/dev/null 248>|@reports@

### leave: leaves the loop by an interrupt, of which nothing is to be seen; where no report was made, that is missed first
\builtin test "${__shelld-}" = : || \builtin return
{ [[ ! -e /proc/$$/fd/2 ]] || \exec 246>&2; \exec 2>|/dev/null; }
\builtin enable kill
\builtin kill -INT "$$"

### status: sourced to set `$?`
\builtin test "${1-}" != @tag@status || \builtin return "$2"

### exit_action: the EXIT trap; a subshell that has inherited it goes no further than the first line of `exit`
# With a soft limit of very few descriptors not even the redirections of a group can be made. The status is kept within
# one of them, for nothing that is done before is hidden from `set -x`; the piece of `$$` that is expanded has no length.
{ @exiting@; } >|"/dev/null${$:$((__shelld=$?,0)):0}" 2>|/dev/null || { @room@; { @exiting@; } >|/dev/null 2>|/dev/null; }; \builtin . @script@

### exiting: room for the descriptors of what follows, and what `set +xv` would change
__shelld="$__shelld $-"; \builtin : 251</ || { @room@; };
\builtin trap -p DEBUG RETURN >|@scratch@; \builtin trap - DEBUG RETURN; \builtin set +xv

### room: as many as repair.py gives, or what there can be
\builtin ulimit -S -n 1024 || \builtin ulimit -n 1024 || \builtin ulimit -S -n hard

### exit: report
# bash runs the EXIT trap also where a signal ends it, and `$?` tells nothing of that: but then no `exit` is executed.
# The lines behind `shopt -u` are parsed without aliases: one may have the name of a reserved word.
\builtin test /proc/self -ef "/proc/$$" || \builtin return "${__shelld%% *}"
\builtin enable . @builtins@
\builtin shopt -q expand_aliases && __shelld[2]=s || __shelld[2]=u; \builtin shopt -u expand_aliases
{
\builtin mapfile -d '' -t -n 1 -O 1 __shelld <@scratch@
\builtin printf '%s\n' "${__shelld[1]-}" >&248; \builtin unset -v '__shelld[1]'
\builtin trap -p >&248
\builtin trap - ERR EXIT; \builtin set +xve
\builtin printf '@tag@\0X\0%.64s\0%.65536s\0%.65536s\0%.4s\0' "$__shelld 0 " "${PWD-}" "${OLDPWD-}" "${BASH_COMMAND-}" >&248
__shelld=${__shelld%% *}
} 251<>/dev/null 248>|@reports@ >&251 2>&251

### unlimited: before a dump
# A limit on the size of files holds for memory files as well, so it comes back behind the rest. Mostly there is none:
# then nothing is forked, for which a limit of processes might leave no room.
{ \builtin mapfile -t -s 2 -n 1 -O 3 __shelld <"/proc/$$/limits"; } 2>|/dev/null
if [[ ${__shelld[3]-} == *' unlimited '*' unlimited '* ]]; then __shelld[1]=
else __shelld[1]="ulimit -Sf $(\builtin ulimit -Sf); ulimit -Hf $(\builtin ulimit -Hf)"; fi
{ \builtin ulimit -f unlimited || \builtin ulimit -S -f hard; } 2>|/dev/null

### dump: the state of a shell, for itself when it comes back, and for the daemon, which takes the sections apart
# `shopt -p` fails where the option is off, which must not end a shell with `set -e`.
{
\builtin shopt -p extglob || \builtin :; \builtin declare -fp; \builtin printf '\\builtin : @tag@\n'
\builtin declare -p; \builtin printf '\\builtin : @tag@\n'
\builtin alias -p; \builtin printf '\\builtin : @tag@\n'
\builtin shopt -p; \builtin set +o; \builtin printf '\\builtin : @tag@\n'
\builtin trap -p; \builtin printf '\\builtin : @tag@\n'
\builtin umask -p
[[ ${1-} == --on-exit || $# == 0 ]] ||
{ \builtin printf 'set --'; \builtin printf ' %q' "$@"; }
} >|@scratch@ 2>|/dev/null

### limited: behind a dump, which was made without aliases and without that limit
\builtin printf '\n%s' "shopt -${__shelld[2]} expand_aliases" "${__shelld[1]}" >>@scratch@

### on_exit: what the user's own EXIT trap does, in a subshell
\builtin trap '' INT
if [[ ${1-} == --on-exit ]]; then
\builtin printf '@tag@\0U\0' 248>|@reports@ >&248
( \builtin trap - INT EXIT; \builtin . @script@ @tag@status "$__shelld"
\builtin shopt "-${__shelld[2]}" expand_aliases
\builtin eval -- "$2"; \builtin exit "$__shelld" )
__shelld=$?; fi
\builtin printf '@tag@\0Y\0%s\0' "$__shelld" 248>|@reports@ >&248

### put_back: what the redirections of a function have put away that has exited, and so has never undone them
# It is a copy of the terminal that is close-on-exec (02000000 in its flags); what the user has opened is not. Where
# descriptor 0 leads elsewhere, one is that of it. A redirection of the loop itself would put descriptors away, too.
__shelld[3]=10 __shelld[4]=
[[ /proc/$$/fd/0 -ef @terminal@ ]] || __shelld[4]=0
while ((__shelld[3] < 20)); do
if [[ /proc/$$/fd/${__shelld[3]} -ef @terminal@ ]]; then
__shelld[5]=; \builtin mapfile -t -s 1 -n 1 -O 5 __shelld <"/proc/$$/fdinfo/${__shelld[3]}"
if [[ ${__shelld[5]} != *[2367]?????? ]]; then \builtin :
elif [[ ${__shelld[4]} ]]; then __shelld[4]=
elif [[ ! /proc/$$/fd/1 -ef @terminal@ ]]; then \exec >&"${__shelld[3]}"
elif [[ ! /proc/$$/fd/2 -ef @terminal@ ]]; then \exec 2>&"${__shelld[3]}"; fi
fi
((++__shelld[3]))
done

### again: the same process executes bash anew
# The environment travels in the dump alone, so that no variable is too large for execve(2). `exec` terminates the jobs
# that are stopped (end_job_control in bash's jobs.c), but not those that are no jobs any more.
\builtin trap - INT
\builtin disown -a 2>|/dev/null
{ [[ ! -e /proc/$$/fd/2 ]] || \exec 246>&2; \exec 2>|@terminal@; }
\builtin exec -c -a "$0" @shell@ --noprofile --noediting --rcfile @script@ -i <@boot@

### trap: a `trap` that keeps the driver's EXIT trap in front of one that the command sets
# In POSIX mode no function can have the name of a special builtin.
# One that names no EXIT is the last that is done here, for a DEBUG trap would see what comes behind it.
# Names are short, an action may have megabytes: words of more than eight letters are looked at no further.
# shellcheck disable=SC2064,SC2015,SC2199  # what `trap -p` has said is quoted; "$*" would join by the IFS of the user
[[ -o posix ]] || trap() { [[ " ${@/#?????????*/} " == *\ @([Ee][Xx][Ii][Tt]|?([-+])+(0))\ * ]] && { \builtin trap "$@"; \builtin set -- "$?"; [[ $BASHPID == "$$" ]] && {
\builtin trap -p EXIT >|@scratch@; \builtin mapfile -d '' -t -n 1 __shelld <@scratch@;
\builtin eval "__shelld=(${__shelld[0]-})";
[[ ${__shelld[2]-} == @exit_action@* ]] ||
\builtin trap -- @exit_action@"${__shelld[2]+ --on-exit ${__shelld[2]@Q}}" EXIT;
\builtin unset -v __shelld; }; \builtin return "$1"; } || \builtin trap "$@"; }

### repair: gives a shell its builtins back
# In POSIX mode `unset` is found before a function of that name (bash(1), POSIX mode, item 24).
 { POSIXLY_CORRECT=1; \unset -f @builtins@ enable; \unset -v POSIXLY_CORRECT; \enable @builtins@; \builtin trap - DEBUG; } 2>|/dev/null
