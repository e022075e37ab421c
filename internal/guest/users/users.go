// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package users finds the user as whom an image's program runs, by the forms that images have and
// with the meaning that container engines give them. Start with Lookup. It is pure: its caller reads
// /etc/passwd and /etc/group of the image.
package users

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// User is whose rights a program has.
type User struct {
	UID, GID uint32
	// Groups has GID and, where the image's text names no group, those that list the user.
	Groups []uint32
	// Name is empty for a number that /etc/passwd does not have.
	Name string
	// Home is "/" for a user that /etc/passwd does not have.
	Home string
}

// maxID is the largest number of a user or group. Larger ones are negative for some programs.
const maxID = math.MaxInt32

// maxGroups is how many groups the kernel takes (NGROUPS_MAX).
const maxGroups = 65536

// Lookup returns the user of a text such as "", "app", "1000", "app:staff" or "1000:50". A number is
// always an ID, even if there is a user of that name.
func Lookup(text string, passwd, group []byte) (User, error) {
	userText, groupText, hasGroup := strings.Cut(text, ":")
	u, err := lookupUser(userText, passwd)
	if err != nil {
		return User{}, err
	}
	if hasGroup && groupText != "" {
		if u.GID, err = lookupGroup(groupText, group); err != nil {
			return User{}, err
		}
		u.Groups = []uint32{u.GID}
		return u, nil
	}
	u.Groups = append([]uint32{u.GID}, groupsOf(u.Name, group)...)
	slices.Sort(u.Groups[1:])
	if u.Groups = slices.Compact(u.Groups); len(u.Groups) > maxGroups {
		return User{}, fmt.Errorf("user is in %d groups of the image's /etc/group, at most %d are allowed", len(u.Groups), maxGroups)
	}
	return u, nil
}

// lookupUser returns the user without groups beyond the first.
func lookupUser(text string, passwd []byte) (User, error) {
	id, isNumber, err := parseID("user", text)
	if err != nil {
		return User{}, err
	}
	if text == "" {
		id, isNumber = 0, true
	}
	for fields := range entries(passwd, 6) { // name:password:uid:gid:comment:home
		uid, isUID, errUID := parseID("", fields[2])
		gid, isGID, errGID := parseID("", fields[3])
		if !isUID || !isGID || errUID != nil || errGID != nil {
			continue
		}
		if isNumber && uid == id || !isNumber && fields[0] == text {
			return User{UID: uid, GID: gid, Name: fields[0], Home: homeOf(fields[5])}, nil
		}
	}
	if !isNumber {
		return User{}, fmt.Errorf("user is %.80q, which the image's /etc/passwd does not have", text)
	}
	return User{UID: id, Home: "/"}, nil
}

func homeOf(text string) string {
	if text == "" {
		return "/"
	}
	return text
}

func lookupGroup(text string, group []byte) (uint32, error) {
	id, isNumber, err := parseID("group", text)
	if isNumber || err != nil {
		return id, err
	}
	for fields := range entries(group, 3) { // name:password:gid:members
		if gid, isGID, err := parseID("", fields[2]); isGID && err == nil && fields[0] == text {
			return gid, nil
		}
	}
	return 0, fmt.Errorf("user names the group %.80q, which the image's /etc/group does not have", text)
}

// groupsOf returns the groups that list a user.
func groupsOf(name string, group []byte) (ids []uint32) {
	if name == "" {
		return nil
	}
	for fields := range entries(group, 4) {
		gid, isGID, err := parseID("", fields[2])
		if isGID && err == nil && slices.Contains(strings.Split(fields[3], ","), name) {
			ids = append(ids, gid)
		}
	}
	return ids
}

// parseID returns the number that a text is, if it is one. One that is too large is an error.
func parseID(kind, text string) (id uint32, isNumber bool, err error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, false, nil //nolint:nilerr // it is a name
	}
	if n < 0 || n > maxID {
		return 0, true, fmt.Errorf("%s is %d, want 0 to %d", kind, n, maxID)
	}
	return uint32(n), true, nil
}

// maxLine is the longest line that counts. A longer one ends the file.
const maxLine = 1 << 20

// entries yields the fields of each line that has at least so many.
func entries(file []byte, fields int) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		lines := bufio.NewScanner(bytes.NewReader(file))
		lines.Buffer(nil, maxLine)
		for lines.Scan() {
			line := strings.TrimSpace(lines.Text())
			if parts := strings.Split(line, ":"); line != "" && line[0] != '#' && len(parts) >= fields && !yield(parts) {
				return
			}
		}
	}
}
