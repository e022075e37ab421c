// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"cloudnative.tw/drover/internal/login"
	"cloudnative.tw/drover/internal/machine/accounts"
)

// member is a user of the host.
type member struct {
	name string
	uid  uint32
}

// userName are the names that may log in. They include those of Active Directory (DOMAIN\name, name@domain).
var userName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.@+\\$-]{0,127}$`)

// apiName returns the user's name in the API.
func (m member) apiName() string { return userPrefix + m.name }

// uidNamespace begins the part of a namespace's name that is not the user's name.
const uidNamespace = "uid-"

// namespace returns the user's namespace.
func (m member) namespace() string {
	named := "user-" + m.name
	if strings.HasPrefix(m.name, uidNamespace) || len(validation.IsDNS1123Label(named)) > 0 {
		return "user-" + uidNamespace + m.uidText()
	}
	return named
}

func (m member) uidText() string { return strconv.FormatUint(uint64(m.uid), 10) }

// findMember returns the user with an ID. It asks the host now: a process of the user keeps groups that the user has
// left.
func (s *Server) findMember(uid uint32) (member, error) {
	if uid == 0 {
		return member{}, newRefusal("root does not log in: it has the kubeconfig of the data dir, which sudo drover vm and sudo drover kubectl use")
	}
	found, err := s.Directory.FindUserByID(uid)
	switch {
	case errors.Is(err, accounts.ErrUnknown):
		return member{}, newRefusal("the host does not list a user with ID %d", uid)
	case err != nil:
		return member{}, err
	case !userName.MatchString(found.Name):
		return member{}, newRefusal("the name of user %d is %.140q: it must begin with a letter or _, and have at most 128 letters, digits and _.@+\\$-", uid, found.Name)
	}
	// Another source of users may have this name, too, and answers first for the name.
	named, err := s.Directory.FindUser(found.Name)
	if err != nil {
		return member{}, err
	}
	isMember, err := s.isInGroup(named)
	if err == nil && (!isMember || named.ID != uid) {
		err = newRefusal("user %s (%d) is not in group %s: have root run adduser %s %s", found.Name, uid, login.Group, found.Name, login.Group)
	}
	return member{found.Name, uid}, err
}

// isInGroup reports whether a login gives the group to a user, now. An error means that this is not known.
func (s *Server) isInGroup(u accounts.User) (bool, error) {
	group, err := s.Directory.FindGroup(login.Group)
	if errors.Is(err, accounts.ErrUnknown) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("group %s: %w", login.Group, err)
	}
	groups, err := s.Directory.GroupsOf(u)
	if err != nil {
		return false, fmt.Errorf("groups of user %s: %w", u.Name, err)
	}
	return slices.Contains(groups, group.ID), nil
}
