// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program recorder is started by Drover instead of QEMU. It reports its start and its server to
// the log of package processlog for its own path, and then executes QEMU in the same process.
// Because the log depends on the path, each environment uses a separate copy of the program.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/test/failover/processlog"
)

func main() {
	fmt.Fprintln(os.Stderr, "recorder:", runQEMU())
	os.Exit(1)
}

// runQEMU returns only if it fails.
func runQEMU() error {
	if n := slices.Index(os.Args, "-name"); n >= 0 && n+1 < len(os.Args) {
		if err := processlog.Report(os.Args[0], types.UID(strings.TrimPrefix(os.Args[n+1], launch.NameOf("")))); err != nil {
			return err
		}
	}
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return err
	}
	return syscall.Exec(qemu, append([]string{qemu}, os.Args[1:]...), os.Environ())
}
