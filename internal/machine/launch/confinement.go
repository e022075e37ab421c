// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"os"
	"slices"

	"cloudnative.tw/drover/internal/machine/accounts"
	"cloudnative.tw/drover/internal/machine/confine"
)

// Confinement says how a QEMU was confined when it was started.
type Confinement struct {
	// UserID is the user ID that QEMU runs as.
	UserID uint32 `json:"userID"`
	// HasUniqueID is set if no other machine has that user ID.
	HasUniqueID bool `json:"hasUniqueID,omitempty"`
	// LandlockABI is the version of Landlock that confines QEMU, 0 for none.
	LandlockABI int `json:"landlockABI,omitempty"`
}

func (o Invocation) confinementOf(user *confine.User) Confinement {
	c := Confinement{UserID: uint32(os.Geteuid()), LandlockABI: o.Policy.ABI} //nolint:gosec // a user ID
	if user != nil {
		c.UserID, c.HasUniqueID = user.ID, o.Users.last != 0
	}
	return c
}

// Describe describes the confinement of a QEMU process for users.
func (c Confinement) Describe() string {
	text := fmt.Sprintf("it runs as user ID %d", c.UserID)
	switch {
	case c.HasUniqueID:
		text += ", which only this machine has"
	case c.UserID == uint32(os.Geteuid()): //nolint:gosec // a user ID
		text += ", which Drover has too"
	default:
		text += ", which all machines have"
	}
	if c.LandlockABI == 0 {
		return text + ", and without Landlock"
	}
	return fmt.Sprintf("%s, with version %d of Landlock", text, c.LandlockABI)
}

// IsWeak reports whether only the filter of system calls confines a QEMU: it runs as this
// program's user, and without Landlock.
func (c Confinement) IsWeak() bool {
	return c.LandlockABI == 0 && c.UserID == uint32(os.Geteuid()) //nolint:gosec // a user ID
}

// Matches reports whether a QEMU that was started with c is as separate from other users as a QEMU that is
// started now.
func (u *Users) Matches(c Confinement) bool {
	return !u.AreSeparate() || (c.UserID != uint32(os.Geteuid()) && (u.last == 0 || c.HasUniqueID)) //nolint:gosec // a user ID
}

// FindExposures returns weaknesses of this host that undo the confinement of machines: a folder
// of machines that other users can read, or machines that run as a user who may control the
// Docker engine.
func (u *Users) FindExposures(folder string) []string {
	groups, _ := os.Getgroups()
	return u.FindExposuresOf(os.Geteuid(), append(groups, os.Getegid()), folder)
}

// FindExposuresOf is FindExposures for a Drover that runs as another user with the given groups.
func (u *Users) FindExposuresOf(uid int, groups []int, folder string) []string {
	var found []string
	if info, err := os.Stat(folder); err == nil && info.Mode().Perm()&0o077 != 0 {
		found = append(found, fmt.Sprintf("other users can look into %s, whose mode is %#o: mode 0700 keeps them out", folder, info.Mode().Perm()))
	}
	if !u.AreSeparate() && uid != 0 && hasGroup(groups, "docker") {
		found = append(found, "Drover's user is in group docker, which has all rights on this host, and machines run as that user: run the drivers docker and qemu as two Drovers of two users, or Drover as root")
	}
	return found
}

// hasGroup reports whether one of the groups has this name.
func hasGroup(groups []int, name string) bool {
	group, err := accounts.FindGroup(name)
	return err == nil && slices.Contains(groups, int(group.ID))
}
