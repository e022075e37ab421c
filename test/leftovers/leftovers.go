// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package leftovers finds what tests have left on the host. Start with Processes.
package leftovers

import (
	"bytes"
	"os"
	"slices"
	"strings"

	"cloudnative.tw/drover/internal/machine/proc"
)

// Processes returns the PIDs of processes that have a variable, as NAME=value, in their environment or, since some
// clear their environment, that run in a folder or have a path of it in their command line. It leaves out this process
// and its parent.
func Processes(variable, folder string) (pids []int) {
	for _, pid := range proc.IDs() {
		if pid == os.Getpid() || pid == os.Getppid() {
			continue
		}
		environment, _ := os.ReadFile(proc.Path(pid, "environ"))
		cwd, _ := os.Readlink(proc.Path(pid, "cwd"))
		args, _ := os.ReadFile(proc.Path(pid, "cmdline"))
		hasVariable := slices.ContainsFunc(bytes.Split(environment, []byte{0}), func(v []byte) bool { return string(v) == variable })
		if hasVariable || strings.HasPrefix(cwd+"/", folder+"/") || bytes.Contains(args, []byte(folder+"/")) {
			pids = append(pids, pid)
		}
	}
	return pids
}
