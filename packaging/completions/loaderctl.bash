# SPDX-License-Identifier: MIT
# bash completion of loaderctl and loaderd. Commands, options and the words of their values are those that the programs
# themselves list (--help), so this file names none of them.

# The values of an option: the words of "  --option a|b|c ..." in a help text on standard input.
_loaderd_values() {
    sed -n "s/^  $1 \([^ ]*\).*/\1/p" | head -n 1 | tr '|' '\n' | grep -E '^[a-z0-9-]+$'
}

# Completes an option's name or value; $1 prints the help text. Fails where the word is neither.
_loaderd_options() {
    local current=$2 previous=$3
    COMPREPLY=()
    if [[ $previous == --* ]]; then
        local argument
        argument=$("$1" | sed -n "s/^  $previous \([^ ]*\).*/\1/p" | head -n 1)
        case $argument in
        PATH | FILE | FOLDER | *\|FILE | FILE\|*) mapfile -t COMPREPLY < <(compgen -f -- "$current") && return ;;
        '' | [a-z]*' '*) ;;
        *) mapfile -t COMPREPLY < <(compgen -W "$("$1" | _loaderd_values "$previous")" -- "$current") && return ;;
        esac
    fi
    [[ $current == -* ]] || return 1
    mapfile -t COMPREPLY < <(compgen -W "$("$1" | sed -n 's/^  \(--[a-z-]*\).*/\1/p') --help" -- "$current")
}

_loaderctl() {
    local current=$2 previous=$3 program=$1
    # shellcheck disable=SC2317 # called by _loaderd_options
    _loaderctl_help() { "$program" "${COMP_WORDS[1]}" --help 2>/dev/null; }
    if [[ $COMP_CWORD -eq 1 ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" --help 2>/dev/null | sed -n 's/^  \([a-z]*\) .*/\1/p') --help" -- "$current")
        return
    fi
    _loaderd_options _loaderctl_help "$current" "$previous" || mapfile -t COMPREPLY < <(compgen -f -- "$current")
}

_loaderd() {
    local program=$1
    # shellcheck disable=SC2317
    _loaderd_help() { "$program" --help 2>/dev/null; }
    _loaderd_options _loaderd_help "$2" "$3" || COMPREPLY=()
}

complete -o filenames -F _loaderctl loaderctl
complete -o filenames -F _loaderd loaderd
