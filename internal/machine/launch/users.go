// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/machine/accounts"
	"cloudnative.tw/drover/internal/machine/confine"
)

const (
	// DefaultUser is the default name of the user whose group machines run as.
	DefaultUser = "drover-qemu"
	// DefaultUserIDs are above the IDs that distributions, directory services and containers
	// assign by default.
	DefaultUserIDs = "2100000000-2100065535"
	// maxUserID is the highest user ID in Linux: the next number stands for no user.
	maxUserID = math.MaxUint32 - 1
)

// Kinds of failure; test with errors.Is.
var (
	// ErrNoUser means that the user of machines does not exist, or this program may not switch to it.
	ErrNoUser = errors.New("no user for machines")
	// ErrUserIDsExhausted means that all user IDs for machines are in use.
	ErrUserIDsExhausted = errors.New("no user ID is free")
)

// Users are the users that machines run as. Without a name, machines run as the user of this
// program.
type Users struct {
	name        string
	first, last uint32 // the range of user IDs, one for each machine; without a range, last is 0

	mu sync.Mutex
}

// NewUsers returns the users for a name and a range of IDs, such as "2000-2999". Both may be
// empty. A caller that is not root passes an empty name, since only root can start machines as
// other users.
func NewUsers(name, ids string) (*Users, error) {
	u := &Users{name: name}
	if name == "" || ids == "" {
		return u, nil
	}
	first, last, _ := strings.Cut(ids, "-")
	from, err := strconv.ParseUint(first, 10, 32)
	to, err2 := strconv.ParseUint(last, 10, 32)
	if err := errors.Join(err, err2); err != nil || from < 1 || to < from || to > maxUserID {
		return nil, fmt.Errorf("the user IDs of machines are %.80q: they must be a range such as %s, from 1 to %d", ids, DefaultUserIDs, uint32(maxUserID))
	}
	u.first, u.last = uint32(from), uint32(to)
	return u, nil
}

// AreSeparate reports whether machines run as other users than this program. It is false for nil.
func (u *Users) AreSeparate() bool { return u != nil && u.name != "" }

// Check fails if the user of machines does not exist or is not usable.
func (u *Users) Check() error {
	_, err := u.findUser()
	return err
}

// findUser looks up the user by its name, nil if the name is empty. It fails with ErrNoUser.
func (u *Users) findUser() (*confine.User, error) {
	if u.name == "" {
		return nil, nil //nolint:nilnil // Machines run as the user of this program.
	}
	found, err := accounts.FindUser(u.name)
	if errors.Is(err, accounts.ErrUnknown) {
		return nil, fmt.Errorf("%w: user %s of machines does not exist: create it with \"useradd --system --no-create-home --shell /usr/sbin/nologin %[2]s\"", ErrNoUser, u.name)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: looking for user %s: %w", ErrNoUser, u.name, err)
	}
	if found.ID == 0 || found.GroupID == 0 {
		return nil, fmt.Errorf("%w: user %s has the ID or group of root: name another user", ErrNoUser, u.name)
	}
	return &confine.User{ID: found.ID, GroupID: found.GroupID}, nil
}

// CheckDevice fails unless machines' users may read and write a device.
func (u *Users) CheckDevice(path string) error {
	device, err := os.OpenFile(path, os.O_RDWR, 0) //nolint:gosec // a path of the caller
	if err != nil {
		return err
	}
	info, err := device.Stat()
	if err := errors.Join(err, device.Close()); err != nil {
		return err
	}
	const forAll = 0o006
	if u.AreSeparate() && info.Mode().Perm()&forAll != forAll && deviceGroups(path) == nil {
		return fmt.Errorf("only root may use %s, and machines run as other users: give it a group that may read and write it, such as kvm", path)
	}
	return nil
}

// StartAs calls start with the user for a new machine, or for another program that is confined
// like a machine. It allows one call at a time, since an ID counts as free until a process has it.
func (u *Users) StartAs(start func(*confine.User) error) error {
	user, err := u.findUser()
	if err != nil {
		return err
	}
	if user == nil || u.last == 0 {
		return start(user)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if user.ID, err = u.freeID(); err != nil {
		return err
	}
	return start(user)
}

// freeID returns an ID that no process of this host has. It begins at a random ID, so that
// independent programs rarely choose the same ID.
func (u *Users) freeID() (uint32, error) {
	count := uint64(u.last-u.first) + 1
	begin := rand.Uint64N(count) //nolint:gosec // The ID need not be secret.
	for i := range count {
		id := u.first + uint32((begin+i)%count) //nolint:gosec // at most last
		if _, err := unix.Getpriority(unix.PRIO_USER, int(id)); errors.Is(err, unix.ESRCH) {
			return id, nil
		}
	}
	return 0, fmt.Errorf("%w: processes have all %d IDs from %d to %d: configure a larger range", ErrUserIDsExhausted, count, u.first, u.last)
}
