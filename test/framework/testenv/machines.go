// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/test/assert"
)

// MachineProcesses returns the PIDs of the QEMU processes of a UID.
func MachineProcesses(t testing.TB, uid types.UID) []int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	assert.NoError(t, err)
	var pids []int
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(line, []byte("\x00-name\x00"+launch.NameOf(string(uid))+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// KillMachinesAtEnd kills machines below a folder that still run at the end of the test,
// and fails the test. Call it before starting a controller, which is then stopped first:
// cleanups run in reverse order, and a running controller would start the machines again.
func KillMachinesAtEnd(t testing.TB, dir string) {
	t.Helper()
	t.Cleanup(func() {
		links, _ := filepath.Glob("/proc/[0-9]*/cwd")
		for _, link := range links {
			at, err := os.Readlink(link)
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link)))
			if err != nil || pid == os.Getpid() || !strings.HasPrefix(at, dir+"/") {
				continue
			}
			t.Errorf("a machine was left running: process %d in %s", pid, at)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
}

// FilesWithUID returns the files below a folder whose path contains a UID.
func FilesWithUID(t testing.TB, dir string, uid types.UID) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.Contains(path, string(uid)) {
			found = append(found, path)
		}
		if os.IsNotExist(err) { // removed concurrently
			return nil
		}
		return err
	})
	assert.NoError(t, err)
	return found
}
