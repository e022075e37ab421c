// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package debian installs Drover's package in a bare Debian, as a user would, and uses and removes it.
//
// Start with TestPackage. A Debian is a folder that systemd-nspawn boots: system.go.
package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// system is a Debian in a folder.
type system struct {
	root string
	boot *exec.Cmd
	// end is closed once the boot has ended.
	end chan struct{}
	log bytes.Buffer
}

// newSystem unpacks a bare Debian with a repository of packages, from which apt installs without a network.
func newSystem(t *testing.T, packages ...string) *system {
	t.Helper()
	root, err := framework.RepositoryRoot()
	assert.NoError(t, err)
	printed, _ := framework.MustRunCommand(t, framework.BuildTimeout, nil, filepath.Join(root, "hack", "bare-debian.sh"))
	bare := strings.TrimSpace(printed)
	s := &system{root: filepath.Join(t.TempDir(), "root")}
	repository := filepath.Join(s.root, "srv", "repository")
	assert.NoError(t, os.Mkdir(s.root, 0o755))
	framework.MustRunCommand(t, framework.BuildTimeout, nil, "tar", "--extract", "--numeric-owner", "--file", filepath.Join(bare, "root.tar"), "--directory", s.root)
	framework.MustRunCommand(t, framework.BuildTimeout, nil, "cp", "--recursive", filepath.Join(bare, "debs"), repository)
	for _, p := range packages {
		framework.MustRunCommand(t, framework.BuildTimeout, nil, "cp", p, repository)
	}
	index, _ := framework.MustRunCommand(t, framework.BuildTimeout, nil, "sh", "-c", "cd "+repository+" && apt-ftparchive packages .")
	assert.NoError(t, os.WriteFile(filepath.Join(repository, "Packages"), []byte(index), 0o600))
	assert.NoError(t, os.Chmod(filepath.Join(repository, "Packages"), 0o644))
	sources := filepath.Join(s.root, "etc", "apt", "sources.list")
	assert.NoError(t, os.WriteFile(sources, []byte("deb [trusted=yes] file:/srv/repository ./\n"), 0o600))
	assert.NoError(t, os.Chmod(sources, 0o644))
	t.Cleanup(func() { s.powerOff(t) })
	return s
}

// start boots the Debian without a network, and waits until systemd has started everything.
func (s *system) start(t *testing.T) {
	t.Helper()
	s.boot = exec.CommandContext(context.WithoutCancel(t.Context()), "systemd-nspawn", "--quiet", "--directory", s.root, "--machine", "drover-test-"+strconv.Itoa(os.Getpid()),
		"--boot", "--private-network", "--resolv-conf=off", "--register=no", "--keep-unit")
	s.log.Reset()
	s.boot.Stdout, s.boot.Stderr = &s.log, &s.log
	s.boot.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	assert.NoError(t, s.boot.Start())
	end := make(chan struct{})
	s.end = end
	go func() { defer close(end); _ = s.boot.Wait() }()
	assert.Eventually(t, "the Debian has booted", func(testing.TB) error {
		out, err := s.tryCommand(t, "systemctl", "is-system-running")
		return assert.ErrorUnless(strings.TrimSpace(out) == "running", "it is %q, %v", out, err)
	})
}

// leaderPID returns the process ID of the Debian's systemd, outside of the Debian.
func (s *system) leaderPID() (string, error) {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", s.boot.Process.Pid, s.boot.Process.Pid))
	if err != nil {
		return "", err
	}
	pids := strings.Fields(string(children))
	if len(pids) == 0 {
		return "", errors.New("systemd-nspawn lacks a child")
	}
	return pids[0], nil
}

// tryCommand runs a command in the Debian.
func (s *system) tryCommand(t *testing.T, command ...string) (string, error) {
	t.Helper()
	pid, err := s.leaderPID()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(t.Context(), framework.BuildTimeout)
	defer cancel()
	enter := []string{
		"--target", pid, "--mount", "--uts", "--ipc", "--pid", "--net", "--cgroup", "--root", "--wd",
		"env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
	}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, command...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// run runs a command in the Debian that must succeed.
func (s *system) run(t *testing.T, command ...string) string {
	t.Helper()
	out, err := s.tryCommand(t, command...)
	assert.Require(t, err == nil, "%q failed: %v: %s", command, err, out)
	return out
}

// powerOff shuts the Debian down, if it runs, and waits for its end.
func (s *system) powerOff(t *testing.T) {
	t.Helper()
	if s.boot == nil {
		return
	}
	defer func() {
		_ = s.boot.Process.Kill() // if it has not ended
		s.boot = nil
	}()
	if pid, err := s.leaderPID(); err == nil {
		id, err := strconv.Atoi(pid)
		assert.NoError(t, err)
		const powerOff = 38 // SIGRTMIN+4, systemd(1)
		assert.NoError(t, syscall.Kill(id, powerOff))
	}
	assert.Eventually(t, "the Debian shuts down", func(testing.TB) error {
		select {
		case <-s.end:
			return nil
		default:
			return errors.New(s.log.String())
		}
	})
}

// volatile are the folders that any use of a Debian changes, and the one with the cache of root's kubectl.
var volatile = []string{
	"/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/var/log", "/var/cache", "/var/lib/apt", "/var/lib/dbus", "/var/lib/systemd", "/var/lib/dpkg",
	"/root/.kube",
}

// listFiles returns the paths of all files of the Debian, apart from the volatile ones.
func (s *system) listFiles(t *testing.T) map[string]bool {
	t.Helper()
	files := map[string]bool{}
	assert.NoError(t, filepath.WalkDir(s.root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, s.root)
		if slices.Contains(volatile, name) {
			return fs.SkipDir
		}
		files[name] = true
		return nil
	}))
	return files
}
