// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"regexp"

	"k8s.io/apimachinery/pkg/types"
)

var uidPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$`)

// UniqueUIDs returns each UID once. It returns ErrInvalid for a UID that CheckUID
// refuses.
func UniqueUIDs(uids []types.UID) ([]types.UID, error) {
	seen := make(map[types.UID]bool, len(uids))
	unique := make([]types.UID, 0, len(uids))
	for _, uid := range uids {
		if err := CheckUID(uid); err != nil {
			return nil, err
		}
		if !seen[uid] {
			seen[uid] = true
			unique = append(unique, uid)
		}
	}
	return unique, nil
}

// CheckUID returns ErrInvalid for a UID that is not safe in a file name, a label
// or a part of an engine-side name. Every driver calls it before using a UID in
// one of those.
func CheckUID(uid types.UID) error {
	if uidPattern.MatchString(string(uid)) {
		return nil
	}
	return Errorf(ErrInvalid, "metadata.uid is %.140q: it must be 1 to 128 letters, digits, - or _, beginning with a letter or digit", string(uid))
}
