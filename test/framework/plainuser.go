// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// plainUserID is the ID of a user who exists nowhere else.
const plainUserID = 2100065800

// PublicDir returns a folder for a program that machines' users execute: all users can
// search it.
func PublicDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	assert.NoError(t, errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)))
	return dir
}

// PublicProgram returns a program in a folder that all users can search: those above a checkout may be
// closed to others, as root's home is.
func PublicProgram(t testing.TB, path string) string {
	t.Helper()
	public := filepath.Join(PublicDir(t), filepath.Base(path))
	if os.Link(path, public) == nil {
		return public
	}
	content, err := os.ReadFile(path) // #nosec -- a test's
	assert.NoError(t, errors.Join(err, WriteProgram(public, content)))
	return public
}

// PlainUser returns a user who is not root, for programs that root starts. It skips a test
// that is not run by root: its user is plain already.
func PlainUser(t testing.TB) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: the other subtest covers this user")
	}
	return &syscall.Credential{Uid: plainUserID, Gid: plainUserID}
}

// RunAsPlainUser runs some of a package's tests again, as a user who is not root: all of Test, and of
// Test/A|B the subtests A and B. They find hack/ of the repository, and standalone/go.mod, which marks
// its root.
func RunAsPlainUser(t *testing.T, tests ...string) {
	t.Helper()
	runAsPlainUser(t, PlainUser(t), LinuxGuest{}, tests)
}

// RunWithGuestAsPlainUser is RunAsPlainUser for tests that boot the Linux guest.
func RunWithGuestAsPlainUser(t *testing.T, tests ...string) {
	t.Helper()
	user := PlainUser(t)
	runAsPlainUser(t, user, BuildLinuxGuest(t, t.TempDir()), tests)
}

func runAsPlainUser(t *testing.T, user *syscall.Credential, guest LinuxGuest, tests []string) {
	t.Helper()
	root, err := RepositoryRoot()
	assert.NoError(t, err)
	dir, err := os.MkdirTemp("", "drover-plain-") //nolint:usetesting // Sockets want short paths.
	assert.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	work, program := filepath.Join(dir, "repository"), filepath.Join(dir, "test")
	self, err := os.Executable()
	assert.NoError(t, err)
	assert.NoError(t, errors.Join(
		os.CopyFS(filepath.Join(work, "hack"), os.DirFS(filepath.Join(root, "hack"))),
		os.Mkdir(filepath.Join(work, "standalone"), 0o700), CopyFile(filepath.Join(root, "standalone", "go.mod"), filepath.Join(work, "standalone", "go.mod")),
		CopyFile(self, program), guest.copyTo(filepath.Join(dir, "guest")), ChownAll(dir, user),
	))
	var patterns, names []string
	for _, test := range tests {
		name, subtests, _ := strings.Cut(test, "/")
		names = append(names, name)
		patterns = append(patterns, "^"+name+"$")
		if subtests != "" {
			patterns[len(patterns)-1] += "/^(" + subtests + ")$"
		}
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.v", "-test.run="+strings.Join(patterns, "|"))
	cmd.Dir, cmd.Env = work, append(os.Environ(), "HOME="+dir)
	if guest.Kernel != "" {
		cmd.Env = append(cmd.Env, builtGuestEnv+"="+filepath.Join(dir, "guest"))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	out, err := cmd.CombinedOutput()
	assert.Require(t, err == nil, "as user %d: %v\n%s", user.Uid, err, out)
	for _, name := range names {
		assert.True(t, strings.Contains(string(out), "--- PASS: "+name+" "), "as user %d %s did not pass:\n%s", user.Uid, name, out)
	}
}

// CopyFile copies a file, which only its owner may use.
func CopyFile(source, target string) error {
	content, err := os.ReadFile(source)
	return errors.Join(err, writeProgram(target, content, 0o700))
}

// WriteProgram writes a program that can be started at once.
func WriteProgram(path string, content []byte) error { return writeProgram(path, content, 0o755) }

// writeProgram allows no fork while it writes: a child has the descriptor, open for writing, until its
// exec, and as long the kernel refuses to execute the file (ETXTBSY).
func writeProgram(path string, content []byte, mode os.FileMode) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, content, mode)
}

// ChownAll gives a folder and all in it to a user.
func ChownAll(dir string, user *syscall.Credential) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return fs.WalkDir(root.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, root.Lchown(path, int(user.Uid), int(user.Gid)))
	})
}
