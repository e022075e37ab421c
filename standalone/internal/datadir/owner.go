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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/user"

	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/machine/accounts"
)

// answerWithin is how long a file system may take, whose server may be away.
const answerWithin = 5 * time.Second

// Within calls f, and gives up on it after a time, as on a file system that does not answer.
func Within[T any](limit time.Duration, task string, f func() (T, error)) (T, error) {
	return callUntil(time.After(limit), task, f)
}

// Until is Within for a call that has a context: once that ends, the error is always what it ended
// with, whether or not the call has noticed.
func Until[T any](ctx context.Context, task string, f func() (T, error)) (T, error) {
	value, err := callUntil(ctx.Done(), task, f)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%s: %w", task, ctx.Err())
	}
	return value, err
}

func callUntil[T, S any](over <-chan S, task string, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-over:
		var none T
		return none, fmt.Errorf("%s: %w", task, context.DeadlineExceeded)
	}
}

// maxFileSize limits what is read of a file of a data dir, in bytes.
const maxFileSize = 1 << 20

// Read reads a file of a data dir, carefully: its owner may be another user.
func Read(path string) ([]byte, fs.FileInfo, error) {
	var info fs.FileInfo
	content, err := Within(answerWithin, "reading "+path, func() (content []byte, err error) {
		content, info, err = atomicfile.Read(path, maxFileSize)
		return content, err
	})
	if err != nil {
		return nil, nil, err
	}
	return content, info, nil
}

// UserName returns the name of a user, or the ID of one whom the host does not list.
func UserName(id int) string {
	if found, err := accounts.FindUserByID(uint32(id)); err == nil { //nolint:gosec // a user ID of the kernel
		return found.Name
	}
	return strconv.Itoa(id)
}

// SudoUser returns a user as an argument of sudo --user in a shell.
func SudoUser(id int) string {
	if name := UserName(id); name != strconv.Itoa(id) {
		return printable.ShellWord(name)
	}
	return fmt.Sprintf("'#%d'", id)
}

// BecomeOwner gives up root's rights for those of the user who owns a folder: that user could
// not read files that root writes there, and decides what is in it, such as the programs to
// run. It refuses a folder that yet another user could replace.
func BecomeOwner(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	uid, folderGroup, err := Owner(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return checkMakers(path) // that it is missing is reported by who opens it
	case err == nil && uid == 0:
		return nil
	case err != nil:
		return fmt.Errorf("root does not use %s: %w", path, err)
	}
	groups, err := groupsOf(uid, folderGroup)
	if err == nil {
		err = errors.Join(syscall.Setgroups(groups), syscall.Setgid(groups[0]), syscall.Setuid(uid))
	}
	if err != nil {
		return fmt.Errorf("acting as user %s, who owns %s: %w", UserName(uid), path, err)
	}
	return nil
}

// groupsOf returns the groups that a login gives to a user, such as the group of Docker's socket, the primary one first.
// A user whom the host does not list has the group of the folder alone.
func groupsOf(uid, ofFolder int) ([]int, error) {
	all := GroupsOf(uid)
	switch {
	case all != nil:
		return all, nil
	case ofFolder == 0:
		return nil, errors.New("the host does not list that user, and the folder's group is root's: give it another group")
	}
	return []int{ofFolder}, nil
}

// GroupsOf returns the groups that a login gives to a user, the primary one first; nil if the host does not list the user.
func GroupsOf(id int) (all []int) {
	found, err := accounts.FindUserByID(uint32(id)) //nolint:gosec // a user ID of the kernel
	if err != nil {
		return nil
	}
	groups, err := accounts.GroupsOf(found)
	if err != nil {
		return []int{int(found.GroupID)}
	}
	for _, g := range groups {
		all = append(all, int(g))
	}
	return all
}

// OwnerOf returns the ID of the user who owns a file, or -1.
func OwnerOf(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}

// CheckRoots fails if anybody but root could change what a path names, such as a program.
func CheckRoots(path string) error {
	uid, _, err := Owner(path)
	if err == nil && uid != 0 {
		return fmt.Errorf("%s belongs to user %s", path, UserName(uid))
	}
	return err
}

// Owner returns the user and the group of the file at a path. It fails if anybody but that user
// and root could put something else in its place, and so choose the file on which root acts. It follows
// no symbolic links but those that root alone can change.
func Owner(path string) (uid, gid int, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return 0, 0, err
	}
	last, err := Within(answerWithin, "looking at "+path, func() (step, error) {
		found, err := walkPath(path)
		if errors.Is(err, fs.ErrNotExist) {
			if err := checkSteps(found, 0, path); err != nil {
				return step{}, err // and that user could make it
			}
		}
		if err != nil {
			return step{}, err
		}
		last := found[len(found)-1]
		return last, errors.Join(checkSteps(found[:len(found)-1], last.Uid, path), last.checkWriters())
	})
	return int(last.Uid), int(last.Gid), err
}

// step is a folder on the way to the file at a path, or that file.
type step struct {
	syscall.Stat_t

	path string
}

// walkPath returns the steps to the file at an absolute path, as far as they exist.
func walkPath(path string) (found []step, err error) {
	const maxLinks = 40 // as in Linux
	links, at, rest := 0, "/", splitPath(path)
	for {
		s := step{path: at}
		if err := syscall.Lstat(at, &s.Stat_t); err != nil {
			return found, &fs.PathError{Op: "look at", Path: at, Err: err}
		}
		switch {
		case s.Mode&syscall.S_IFMT == syscall.S_IFLNK:
			target, err := s.followLink(found)
			if links++; err == nil && links > maxLinks {
				err = &fs.PathError{Op: "look at", Path: path, Err: syscall.ELOOP}
			}
			if err != nil {
				return found, err
			}
			at, rest = "/", append(splitPath(target), rest...)
			continue
		case len(rest) == 0:
			return append(found, s), nil
		}
		found = append(found, s)
		at, rest = filepath.Join(at, rest[0]), rest[1:]
	}
}

func splitPath(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}

// followLink returns the path to which a link in the last of some folders leads.
func (s step) followLink(above []step) (string, error) {
	target, err := os.Readlink(s.path)
	if err != nil {
		return "", err
	}
	if s.Uid != 0 || checkSteps(above, 0, s.path) != nil {
		return "", fmt.Errorf("%s is a symbolic link that others than root can change: name what it leads to, %q",
			s.path, target)
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(s.path), target)
	}
	return filepath.Clean(target), nil
}

// checkSteps fails if anybody but root and a user could change what a path below some folders
// names. In a folder with the sticky bit, only its owner can replace what it has.
func checkSteps(found []step, uid uint32, path string) error {
	for _, s := range found {
		if s.Uid != 0 && s.Uid != uid {
			return fmt.Errorf("%s belongs to user %s, who can change what %s is", s.path, UserName(int(s.Uid)), path)
		}
		if s.Mode&syscall.S_ISVTX == 0 {
			if err := s.checkWriters(); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkMakers fails if others than root can create what a path names, which did not exist.
func checkMakers(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	above, err := Within(answerWithin, "looking at "+path, func() ([]step, error) { return walkPath(path) })
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("root does not use %s: %w", path, err)
	case err == nil || above[len(above)-1].checkWriters() != nil: // by now it exists, or may at any time
		return fmt.Errorf("root does not use %s: others than root can make it", path)
	}
	return nil
}

// checkWriters fails if others than the owner may write. A group of that user alone, in which
// distributions have their users make files, is no other.
func (s step) checkWriters() error {
	const group, others = 0o020, 0o002
	if s.Mode&others != 0 || s.Mode&group != 0 && !isPrivateGroup("/etc/passwd", "/etc/group", int(s.Uid), int(s.Gid)) {
		return fmt.Errorf("others than user %s may write to %s, whose mode is %#o: chmod go-w %s prevents that",
			UserName(int(s.Uid)), s.path, s.Mode&0o7777, printable.ShellWord(s.path))
	}
	return nil
}

// isPrivateGroup reports whether one user is the only member of a group, by the files of accounts: a
// user private group. A group from another source of accounts, such as LDAP, never is one.
func isPrivateGroup(passwd, group string, uid, gid int) bool {
	users, err := user.ParsePasswdFileFilter(passwd, func(u user.User) bool { return u.Uid == uid || u.Gid == gid })
	if err != nil || len(users) != 1 || users[0].Uid != uid || users[0].Gid != gid {
		return false
	}
	groups, err := user.ParseGroupFileFilter(group, func(g user.Group) bool { return g.Gid == gid })
	return err == nil && len(groups) == 1 &&
		!slices.ContainsFunc(groups[0].List, func(member string) bool { return member != users[0].Name })
}
