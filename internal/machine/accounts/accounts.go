// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package accounts finds users and groups of the host. It asks getent(1) and id(1), since a static program cannot load
// the host's modules for accounts, such as LDAP (nsswitch.conf(5)).
//
// Start with FindUser.
package accounts

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// answerWithin bounds each question, since a directory service may not answer.
const answerWithin = 10 * time.Second

// programs are the paths of getent and id. They are not looked for in PATH, because root may have a PATH with folders
// of another user.
type programs struct{ getent, id string }

var onHost = programs{"/usr/bin/getent", "/usr/bin/id"}

// ErrUnknown means that the host does not list the user or group.
var ErrUnknown = errors.New("the host does not list it")

// User is a user of the host, and GroupID the primary group.
type User struct {
	Name        string
	ID, GroupID uint32
}

// Group is a group of the host.
type Group struct {
	Name string
	ID   uint32
}

// FindUser returns the user with a name. It fails with ErrUnknown.
func FindUser(name string) (User, error) {
	if err := checkName(name); err != nil {
		return User{}, err
	}
	return onHost.findUser(name)
}

// FindUserByID returns the user with an ID. It fails with ErrUnknown.
func FindUserByID(id uint32) (User, error) { return onHost.findUser(formatID(id)) }

// FindGroup returns the group with a name. It fails with ErrUnknown.
func FindGroup(name string) (Group, error) {
	if err := checkName(name); err != nil {
		return Group{}, err
	}
	return onHost.findGroup(name)
}

// FindGroupByID returns the group with an ID. It fails with ErrUnknown.
func FindGroupByID(id uint32) (Group, error) { return onHost.findGroup(formatID(id)) }

// GroupsOf returns the IDs of all groups that a login gives to a user, the primary one first.
func GroupsOf(u User) ([]uint32, error) {
	text, err := runProgram(onHost.id, "-G", "--", u.Name)
	if err != nil {
		return nil, err
	}
	all := []uint32{u.GroupID}
	for word := range strings.FieldsSeq(text) {
		id, err := parseID(word)
		if err != nil {
			return nil, fmt.Errorf("the groups of user %s: %w", u.Name, err)
		}
		if id != u.GroupID {
			all = append(all, id)
		}
	}
	return all, nil
}

// checkName rejects a number, which getent takes for an ID.
func checkName(name string) error {
	if _, err := strconv.ParseUint(name, 10, 64); err == nil || name == "" {
		return fmt.Errorf("%q: %w", name, ErrUnknown)
	}
	return nil
}

// findUser returns the user with a name or an ID, from the line of passwd(5).
func (p programs) findUser(key string) (User, error) {
	fields, err := p.findEntry("passwd", key)
	if err != nil {
		return User{}, err
	}
	id, err := parseID(fields[2])
	groupID, groupErr := parseID(fields[3])
	return User{fields[0], id, groupID}, errors.Join(err, groupErr)
}

// findGroup returns the group with a name or an ID, from the line of group(5).
func (p programs) findGroup(key string) (Group, error) {
	fields, err := p.findEntry("group", key)
	if err != nil {
		return Group{}, err
	}
	id, err := parseID(fields[2])
	return Group{fields[0], id}, err
}

// findEntry returns the fields of an entry, which are four or more.
func (p programs) findEntry(database, key string) ([]string, error) {
	text, err := runProgram(p.getent, "--", database, key)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == notFound {
		return nil, fmt.Errorf("%s: %w", key, ErrUnknown)
	}
	if err != nil {
		return nil, err
	}
	fields := strings.Split(strings.TrimSuffix(text, "\n"), ":")
	if len(fields) < 4 {
		return nil, fmt.Errorf("getent %s %s prints %.80q", database, key, text)
	}
	return fields, nil
}

func formatID(id uint32) string { return strconv.FormatUint(uint64(id), 10) }

func parseID(text string) (uint32, error) {
	id, err := strconv.ParseUint(text, 10, 32)
	return uint32(id), err
}

// notFound is the exit code of getent for a key that no source has.
const notFound = 2

// runProgram runs a program, and returns its output.
func runProgram(program string, args ...string) (string, error) {
	var out, message bytes.Buffer
	cmd := exec.Command(program, args...) //nolint:gosec,noctx // getent or id, which the timer ends
	cmd.Stdout, cmd.Stderr = &out, &message
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("asking for users and groups: %w", err)
	}
	timer := time.AfterFunc(answerWithin, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	switch {
	case !timer.Stop():
		return "", fmt.Errorf("%s did not answer within %s", program, answerWithin)
	case err != nil:
		return "", fmt.Errorf("%s %s: %w: %.200s", program, strings.Join(args, " "), err, message.String())
	}
	return out.String(), nil
}
