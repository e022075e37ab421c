// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/standalone/internal/datadir"
)

// User is the user whose rights Drover has.
type User struct {
	ID, GroupID int
	Groups      []int
	Name        string
	// By says why this is the user, such as "runs process 1".
	By string
}

// findUser returns the user of the running process, else the owner of the data dir, else the caller.
func findUser(pid int, dir string) User {
	if u, err := userOfProcess(pid); err == nil {
		return u.withName()
	}
	var info syscall.Stat_t
	if err := syscall.Stat(dir, &info); err == nil {
		u := User{ID: int(info.Uid), GroupID: int(info.Gid), By: "owns " + dir}
		if u.ID == os.Geteuid() {
			u.Groups, _ = os.Getgroups()
			return u.withName()
		}
		u.Groups = datadir.GroupsOf(u.ID)
		return u.withName()
	}
	return callingUser()
}

func callingUser() User {
	u := User{ID: os.Geteuid(), GroupID: os.Getegid(), By: "runs this command"}
	u.Groups, _ = os.Getgroups()
	return u.withName()
}

// userOfProcess reads the effective user and the groups of a process.
func userOfProcess(pid int) (User, error) {
	if pid == 0 {
		return User{}, os.ErrNotExist
	}
	status, err := os.ReadFile(proc.Path(pid, "status"))
	if err != nil {
		return User{}, err
	}
	u := User{By: fmt.Sprintf("runs process %d", pid)}
	for line := range bytes.Lines(status) {
		key, values, _ := strings.Cut(string(line), ":")
		ids := parseIDs(values)
		switch {
		case key == "Uid" && len(ids) > 1:
			u.ID = ids[1]
		case key == "Gid" && len(ids) > 1:
			u.GroupID = ids[1]
		case key == "Groups":
			u.Groups = ids
		}
	}
	return u, nil
}

func parseIDs(text string) []int {
	var ids []int
	for word := range strings.FieldsSeq(text) {
		if id, err := strconv.Atoi(word); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

func (u User) withName() User {
	u.Name = datadir.UserName(u.ID)
	return u
}

func (u User) isRoot() bool { return u.ID == 0 }

func (u User) isCaller() bool { return u.ID == os.Geteuid() }

// allGroups returns the primary group and the other groups.
func (u User) allGroups() []int { return append([]int{u.GroupID}, u.Groups...) }

// errOtherUser means that a check needs to run as another user.
var errOtherUser = errors.New("only root and the user of Drover can check this")

// tryAs calls f with the user's rights.
func (u User) tryAs(f func() error) error {
	switch {
	case u.isCaller():
		return f()
	case os.Geteuid() != 0:
		return errOtherUser
	}
	confined := &confine.User{ID: uint32(u.ID), GroupID: uint32(u.GroupID)} //nolint:gosec // IDs of the kernel
	for _, g := range u.Groups {
		confined.Groups = append(confined.Groups, uint32(g)) //nolint:gosec // IDs of the kernel
	}
	return confine.RunAs(confined, f)
}

// machineUsers returns the users that machines run as: separate users if Drover runs as root, else
// the user of Drover.
func (h *Host) machineUsers() (*launch.Users, error) {
	if !h.User.isRoot() {
		return launch.NewUsers("", "")
	}
	return launch.NewUsers(h.QEMU.User, h.QEMU.UserIDs)
}

// machineUserFacts are facts about the users that machines run as.
type machineUserFacts struct {
	user User
	name string
	ids  string // the range of user IDs, "" if all machines run as the same user
	err  error
}

func gatherMachineUser(_ context.Context, h *Host) machineUserFacts {
	f := machineUserFacts{user: h.User, name: h.QEMU.User, ids: h.QEMU.UserIDs}
	users, err := h.machineUsers()
	if f.err = err; err == nil {
		f.err = users.Check()
	}
	return f
}

func judgeMachineUser(f machineUserFacts) []findings.Finding {
	switch {
	case f.err != nil:
		return oneFinding(findings.Warning("%v", f.err).
			Means("While Drover runs as root, driver qemu needs another user for its machines, and does not start them without. Docker is not affected.").
			FixedByCommand("sudo useradd --system --no-create-home --shell /usr/sbin/nologin %s", printable.ShellWord(f.name)))
	case f.user.isRoot() && f.ids == "":
		return oneFinding(findings.OK("all machines run as user %s", f.name))
	case f.user.isRoot():
		return oneFinding(findings.OK("machines run in the group of %s, each with a separate user ID", f.name))
	}
	return oneFinding(findings.Note("machines run as the user of Drover, %s", f.user.Name).
		Means("Only Landlock and the system call filter hold a guest that breaks out of QEMU. A Drover that runs as root can give each machine a separate user: docs/confinement.md, Users."))
}
