// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// tree makes files and folders for a test of root's, in one that every user can search.
type tree struct {
	testing.TB

	base string
	user *syscall.Credential
}

func newTree(t *testing.T) tree {
	t.Helper()
	return tree{t, framework.PublicDir(t), framework.PlainUser(t)}
}

func (f tree) at(name string) string { return filepath.Join(f.base, name) }

// add makes a folder of a user with a mode.
func (f tree) add(name string, uid uint32, mode uint32) {
	f.Helper()
	assert.NoError(f, errors.Join(os.Mkdir(f.at(name), 0o700), os.Lchown(f.at(name), int(uid), 0), syscall.Chmod(f.at(name), mode)))
}

// link makes a symbolic link of a user.
func (f tree) link(name, target string, uid uint32) {
	f.Helper()
	assert.NoError(f, errors.Join(os.Symlink(target, f.at(name)), os.Lchown(f.at(name), int(uid), 0)))
}

// TestOwner checks that Owner fails if anybody but the owner and root can change what the path
// names.
func TestOwner(t *testing.T) {
	t.Parallel()
	f := newTree(t)
	alice, bob := f.user.Uid, f.user.Uid+1
	for _, made := range []struct {
		name string
		uid  uint32
		mode uint32
	}{
		{"root", 0, 0o755},
		{"root/in", 0, 0o700},
		{"all", 0, 0o777},
		{"all/in", 0, 0o700},
		{"group", 0, 0o775},
		{"sticky", 0, 0o1777},
		{"sticky/in", 0, 0o700},
		{"sticky/alice", alice, 0o700},
		{"shared", alice, 0o770},
		{"shared/in", alice, 0o700},
		{"root/alice", alice, 0o700},
		{"root/alice/in", alice, 0o755},
		{"root/alice/bob", bob, 0o755},
		{"root/alice/root", 0, 0o755},
	} {
		f.add(made.name, made.uid, made.mode)
	}
	f.link("link", "root", 0)
	f.link("root/round", "round", 0)
	f.link("sticky/root", "../root/in", 0)
	f.link("sticky/link", f.at("root"), alice)
	f.link("root/alice/link", f.at("root/in"), 0)
	for name, want := range map[string]struct {
		uid  uint32
		says string
	}{
		"root":               {0, ""},
		"root/in":            {0, ""},
		"link/in":            {0, ""},
		"sticky/in":          {0, ""},
		"sticky/root":        {0, ""},
		"group":              {0, ""}, // the group of root
		"root/alice":         {alice, ""},
		"root/alice/in":      {alice, ""},
		"link/alice/in":      {alice, ""},
		"sticky/alice":       {alice, ""},
		"root/none":          {0, "no such file"},
		"root/alice/none":    {0, "belongs to user"},
		"root/alice/bob":     {0, fmt.Sprintf("%s belongs to user %d", f.at("root/alice"), alice)},
		"root/alice/root":    {0, fmt.Sprintf("%s belongs to user %d", f.at("root/alice"), alice)},
		"root/alice/link":    {0, "is a symbolic link that others than root can change"},
		"sticky/link/in":     {0, "is a symbolic link that others than root can change"},
		"root/round":         {0, "too many levels of symbolic links"},
		"all/in":             {0, "others than user root may write to " + f.at("all")},
		"sticky":             {0, "others than user root may write to " + f.at("sticky")},
		"shared/in":          {0, "may write to " + f.at("shared")},
		"root/alice/in/none": {0, "belongs to user"},
	} {
		uid, _, err := Owner(f.at(name))
		if want.says != "" {
			assert.ErrorSays(t, name, err, want.says)
		} else if err != nil || uid != int(want.uid) {
			t.Errorf("%s: got %d, %v; want %d", name, uid, err, want.uid)
		}
	}
	assert.ErrorIs(t, "missing", third(Owner(f.at("root/none"))), fs.ErrNotExist)
	_, _, err := Owner(f.at("root/alice/none"))
	assert.True(t, !errors.Is(err, fs.ErrNotExist), "what alice may make is missing: %v", err)
	assert.ErrorSays(t, "what others may make", checkMakers(f.at("sticky/none")), "others than root can make it")
	assert.NoError(t, errors.Join(checkMakers(f.at("root/none")), CheckRoots(f.at("link/in"))))
	assert.ErrorSays(t, "a program of alice's", CheckRoots(f.at("root/alice/in")), fmt.Sprintf("root/alice/in belongs to user %d", alice))
}

func third[A, B any](_ A, _ B, err error) error { return err }

// TestOpenOthersFolder checks that only the owner of a folder has a data dir there: neither root
// nor a user who may write there, and that nothing in it changes.
func TestOpenOthersFolder(t *testing.T) {
	t.Parallel()
	f := newTree(t)
	f.add("alice", f.user.Uid, 0o755)
	f.add("alice/data", f.user.Uid, 0o777)
	f.add("root", 0, 0o777)
	for name, c := range map[string]struct {
		path, says string
		as         *confine.User
	}{
		"root where all write": {"alice/data", "may write to", nil},
		"alice in root's":      {"root", fmt.Sprintf("belongs to user root, and this is user %d: run it as that user (sudo --user root)", f.user.Uid), &confine.User{ID: f.user.Uid, GroupID: f.user.Gid}},
		"bob in alice's":       {"alice/data", fmt.Sprintf("belongs to user %d, and this is user %d", f.user.Uid, f.user.Uid+1), &confine.User{ID: f.user.Uid + 1, GroupID: f.user.Gid + 1}},
		"root in alice's":      {"alice", fmt.Sprintf("belongs to user %d, and this is user root: run it as that user (sudo --user '#%[1]d')", f.user.Uid), nil},
	} {
		lock := filepath.Join(f.at(c.path), lockFile)
		assert.NoError(t, errors.Join(os.WriteFile(lock, []byte("kept"), 0o666), os.Chmod(lock, 0o666)))
		for _, open := range []func(string) (*Dir, error){Open, OpenExisting} {
			assert.ErrorSays(t, name, confine.RunAs(c.as, func() error { return assert.ErrorOf(open(f.at(c.path))) }), c.says)
		}
		kept, err := os.ReadFile(lock)
		assert.True(t, string(kept) == "kept", "%s: the lock holds %q, %v", name, kept, err)
	}
	assert.ErrorSays(t, "a new folder in alice's", assert.ErrorOf(Open(f.at("alice/new"))), fmt.Sprintf("belongs to user %d", f.user.Uid))
	assert.ErrorIs(t, "the new folder", assert.ErrorOf(os.Lstat(f.at("alice/new"))), fs.ErrNotExist)
}

// TestLockIsAFile checks that nothing is truncated to which a link in the lock's place leads.
func TestLockIsAFile(t *testing.T) {
	t.Parallel()
	for name, place := range map[string]func(lock, victim string) error{
		"link":          func(lock, victim string) error { return os.Symlink(victim, lock) },
		"link inside":   func(lock, _ string) error { return os.Symlink("kubeconfig", lock) },
		"dangling link": func(lock, victim string) error { return os.Symlink(victim+".new", lock) },
		"pipe":          func(lock, _ string) error { return syscall.Mkfifo(lock, 0o600) },
	} {
		dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
		assert.NoError(t, errors.Join(os.WriteFile(victim, []byte("kept"), 0o600), os.WriteFile(Layout(dir).Kubeconfig(), []byte("kept"), 0o600), place(filepath.Join(dir, lockFile), victim)))
		for _, open := range []func(string) (*Dir, error){Open, OpenExisting} {
			assert.ErrorSays(t, name, assert.ErrorOf(open(dir)), filepath.Join(dir, lockFile)+" is not a regular file")
		}
		for _, path := range []string{victim, Layout(dir).Kubeconfig()} {
			kept, err := os.ReadFile(path)
			assert.True(t, string(kept) == "kept", "%s: %s holds %q, %v", name, path, kept, err)
		}
		assert.ErrorIs(t, name, assert.ErrorOf(os.Lstat(victim+".new")), fs.ErrNotExist)
	}
}

// TestRemoveStaysInTheFolder checks that the folder is emptied that was opened, and not one to
// which its path leads by then, as while a person is asked.
func TestRemoveStaysInTheFolder(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	path, aside, other := filepath.Join(base, "data"), filepath.Join(base, "aside"), filepath.Join(base, "other")
	assert.NoError(t, errors.Join(closeNew(Open(path)), closeNew(Open(other))))
	d, err := OpenExisting(path)
	assert.NoError(t, err)
	defer func() { _ = d.Close() }()
	assert.NoError(t, errors.Join(os.Rename(path, aside), os.Symlink(other, path)))
	_, err = d.Remove()
	assert.NoError(t, err)
	for dir, want := range map[string]int{other: 6, aside: 0} {
		if left, err := os.ReadDir(dir); err != nil || len(left) != want {
			t.Errorf("%s has %v, %v", dir, left, err)
		}
	}
}

// TestWithin checks that what does not answer is given up.
func TestWithin(t *testing.T) {
	t.Parallel()
	if got, err := Within(time.Hour, "it", func() (int, error) { return 1, fs.ErrExist }); got != 1 || !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %d, %v", got, err)
	}
	silent := make(chan struct{})
	defer close(silent)
	_, err := Within(0, "reading it", func() (int, error) { <-silent; return 1, nil })
	assert.ErrorIs(t, "what does not answer", err, context.DeadlineExceeded)
	assert.ErrorSays(t, "what does not answer", err, "reading it: ")
}

// TestUntil checks that a call ends with its context, and that it then fails with the cause of the context,
// even if the call itself has noticed and returns another error.
func TestUntil(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	got, err := Until(ctx, "it", func() (int, error) { return 1, fs.ErrExist })
	assert.True(t, got == 1 && errors.Is(err, fs.ErrExist), "got %d, %v", got, err)
	cancel()
	silent := make(chan struct{})
	defer close(silent)
	for name, f := range map[string]func() (int, error){
		"silent": func() (int, error) { <-silent; return 1, nil },
		"ended":  func() (int, error) { return 0, errors.New("the connection was closed") },
	} {
		for range 20 {
			_, err := Until(ctx, "reading it", f)
			assert.ErrorIs(t, name, err, context.Canceled)
			assert.ErrorSays(t, name, err, "reading it: ")
		}
	}
}

// TestCommandOfAnOpenFolder checks that the command that closes a folder to others can be pasted.
func TestCommandOfAnOpenFolder(t *testing.T) {
	t.Parallel()
	open := step{path: "/my data"}
	open.Mode = syscall.S_IFDIR | 0o777
	assert.ErrorSays(t, "a folder that all users may write to", open.checkWriters(), "chmod go-w '/my data' prevents")
}

// TestPrivateGroups checks that a group is private only if its user is the only member.
func TestPrivateGroups(t *testing.T) {
	const own = "ann:x:1000:1000::/home/ann:/bin/sh\n"
	for name, c := range map[string]struct {
		passwd, group string
		want          bool
	}{
		"nobody else":             {own, "ann:x:1000:\n", true},
		"of another name":         {own, "staff:x:1000:ann\n", true},
		"another member":          {own, "ann:x:1000:ann,bob\n", false},
		"another user's main one": {own + "bob:x:1001:1000::/home/bob:/bin/sh\n", "ann:x:1000:\n", false},
		"another user of the ID":  {own + "eve:x:1000:1000::/home/eve:/bin/sh\n", "ann:x:1000:\n", false},
		"not the main one":        {"ann:x:1000:100::/home/ann:/bin/sh\n", "ann:x:1000:\n", false},
		"not in the file":         {own, "", false},
		"listed twice":            {own, "ann:x:1000:\nbobs:x:1000:bob\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			passwd, group := filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
			assert.NoError(t, errors.Join(os.WriteFile(passwd, []byte(c.passwd), 0o600), os.WriteFile(group, []byte(c.group), 0o600)))
			got := isPrivateGroup(passwd, group, 1000, 1000)
			assert.True(t, got == c.want, "got %t", got)
		})
	}
}
