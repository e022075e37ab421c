// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// QEMUAsked are the cases of a script that stands in for QEMU when it is queried about itself.
const QEMUAsked = "--version) echo version 7.2;; -machine) echo 'q35  PC (alias of pc-q35-7.2)';" +
	" echo 'pc-q35-7.2  PC'; echo 'pc-q35-6.2  PC (deprecated)';;"

// QEMUScript returns a script that any user can run in place of QEMU, by its path or, with its folder
// first in PATH, by its name. It finds the real one by that name.
func QEMUScript(t testing.TB, body string) string {
	t.Helper()
	path := filepath.Join(PublicDir(t), "qemu-system-x86_64")
	assert.NoError(t, WriteProgram(path, []byte("#!/bin/sh\nPATH='"+os.Getenv("PATH")+"'\n"+body+"\n")))
	return path
}

// FailingDisk returns a QEMU whose root disk fails the first writes with an errno.
func FailingDisk(t testing.TB, errno, times int) string {
	t.Helper()
	rule := fmt.Sprintf(`{\"event\":\"none\",\"iotype\":\"write\",\"errno\":%d,\"once\":true,\"immediately\":true}`, errno)
	return QEMUScript(t, fmt.Sprintf(`inject="%s"
for a; do
	shift
	case $a in *'"node-name":"root"'*)
		a=$(printf %%s "$a" | sed 's/"file":\({"discard[^}]*}\)/"file":{"driver":"blkdebug","image":\1,"inject-error":['"$inject"']}/') ;;
	esac
	set -- "$@" "$a"
done
exec qemu-system-x86_64 "$@"`, strings.TrimSuffix(strings.Repeat(rule+",", times), ",")))
}
