// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"path/filepath"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
)

// UIDOf returns the UID that the name of a directory or notification file begins with, or "".
func UIDOf(path string) types.UID {
	uid, _, _ := strings.Cut(filepath.Base(path), ".")
	if CheckUID(types.UID(uid)) != nil {
		return ""
	}
	return types.UID(uid)
}

// NewID returns a name for a server or a run.
func NewID() string { return strings.ReplaceAll(string(uuid.NewUUID()), "-", "")[:16] }

var uuidPattern = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// CheckUID rejects a UID that is not a UUID. The UIDs of Kubernetes objects are UUIDs.
func CheckUID(uid types.UID) error {
	if uuidPattern.MatchString(string(uid)) {
		return nil
	}
	return driver.Errorf(driver.ErrInvalid, "metadata.uid is %.140q: it must be a lowercase UUID", string(uid))
}
