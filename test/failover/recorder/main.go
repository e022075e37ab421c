// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program recorder takes the place of QEMU where Drover looks for it. It records
// that it was started, for which server and run, and which other processes run for
// the same server. Then it becomes QEMU: the process stays the same.
//
// The file to which it writes has the path by which it was started, and the suffix
// of processlog. So a link to the recorder is all that a separate environment needs.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/test/failover/processlog"
)

func main() {
	fmt.Fprintln(os.Stderr, "recorder:", runQEMU())
	os.Exit(1)
}

// runQEMU does not return unless it fails.
func runQEMU() error {
	if n := slices.Index(os.Args, "-uuid"); n >= 0 && n+1 < len(os.Args) {
		if err := recordStart(os.Args[0]+processlog.StartsSuffix, types.UID(os.Args[n+1])); err != nil {
			return err
		}
	}
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return err
	}
	return syscall.Exec(qemu, append([]string{qemu}, os.Args[1:]...), os.Environ()) //nolint:gosec // It is started as QEMU.
}

// recordStart looks for other processes before it writes. Of two that start at the same
// time, at least one sees the other.
func recordStart(path string, uid types.UID) error {
	var server struct{ Run string }
	content, err := os.ReadFile("server.json")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, &server); err != nil {
		return err
	}
	all, err := processlog.Processes(uid)
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(all, func(pid int) bool { return pid == os.Getpid() })
	line, err := json.Marshal(processlog.ProcessStart{At: time.Now().UTC(), PID: os.Getpid(), UID: uid, Run: server.Run, Others: others})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n')) // one write, so that lines do not mix
	return errors.Join(err, f.Close())
}
