#compdef loaderctl loaderd
# SPDX-License-Identifier: MIT
# zsh completion of loaderctl and loaderd. Commands, options and the words of their values are those that the programs
# themselves list (--help), so this file names none of them.

# Adds the options that a help text lists, with their descriptions; those that take a word offer its values.
_loaderd_from_help() {
    local line name argument text
    local -a specs
    for line in ${(f)1}; do
        [[ $line =~ '^  (--[a-z-]+)( ([^ ]+))?( +(.*))?$' ]] || continue
        name=$match[1] argument=$match[3] text=${${match[5]//:/\\:}//[\[\]]/ }
        case $argument in
        '') specs+=("${name}[${text}]") ;;
        PATH | FILE | FOLDER | *'|FILE' | 'FILE|'*) specs+=("${name}[${text}]:${argument//:/ }:_files") ;;
        *'|'*) specs+=("${name}[${text}]:value:(${argument//|/ })") ;;
        *) specs+=("${name}[${text}]:${argument//:/ }: ") ;;
        esac
    done
    _arguments $specs '--help[list the options]' '*:dataset or pipeline:_files'
}

_loaderctl() {
    local -a commands
    local line
    if [[ $service == loaderd ]]; then
        _loaderd_from_help "$(loaderd --help 2>/dev/null)"
    elif (( CURRENT == 2 )); then
        for line in ${(f)"$(loaderctl --help 2>/dev/null)"}; do
            [[ $line =~ '^  ([a-z]+) +(.*)$' ]] && commands+=("${match[1]}:${match[2]}")
        done
        _describe command commands
    else
        local command=$words[2]
        shift words
        (( CURRENT-- ))
        _loaderd_from_help "$(loaderctl $command --help 2>/dev/null)"
    fi
}

_loaderctl "$@"
