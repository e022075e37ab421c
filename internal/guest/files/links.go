// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// leadsOutError means that a symbolic link leads out of the destination's folder.
type leadsOutError struct {
	target string
	cause  error
}

// Error implements error.
func (e *leadsOutError) Error() string {
	return fmt.Sprintf("the link to %.200q: %v", e.target, e.cause)
}

// followInside resolves name if it is a symbolic link. It fails with a leadsOutError if the target is outside of root.
func followInside(root *os.Root, name string) (string, error) {
	for range maxLinks {
		target, err := root.Readlink(name)
		if err != nil { // it is not a link
			return name, nil //nolint:nilerr // Whoever opens it sees the error.
		}
		if err := checkLink(root, name, target); err != nil {
			return "", &leadsOutError{target, err}
		}
		name = filepath.Join(filepath.Dir(name), filepath.FromSlash(target))
	}
	return "", &leadsOutError{name, unix.ELOOP}
}

// checkFolders returns an error if a folder in name is a symbolic link. A link in such a folder would be checked at one
// path and created at another.
func checkFolders(root *os.Root, name string) error {
	folder := ""
	for element := range strings.SplitSeq(filepath.ToSlash(filepath.Dir(name)), "/") {
		folder = filepath.Join(folder, element)
		info, err := root.Lstat(folder)
		if err == nil && info.Mode().Type() == fs.ModeSymlink {
			err = fmt.Errorf("the archive's entry %.200q is in %.200q, which is a symbolic link", name, folder)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkLink returns an error if a symbolic link called name leads out of root. checkFolders has checked that no folder of
// the name is a link. Every ".." has to be at the beginning of the target, where it is relative to the link's folder.
// After another name it would be relative to whatever that name leads to, which later entries could change.
func checkLink(root *os.Root, name, target string) error {
	to := path.Join(filepath.ToSlash(filepath.Dir(name)), target)
	switch {
	case path.IsAbs(target):
		return errors.New("the target is absolute")
	case hasParentAfterName(target):
		return errors.New(`the target has ".." after a name`)
	case !filepath.IsLocal(to):
		return errors.New("the target is above the folder")
	}
	if _, err := root.Stat(filepath.FromSlash(to)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cmp.Or(errors.Unwrap(err), err) // for example, an existing link leads out
	}
	return nil
}

// hasParentAfterName reports whether a path has ".." after a name.
func hasParentAfterName(target string) bool {
	hasName := false
	for element := range strings.SplitSeq(target, "/") {
		switch element {
		case "", ".":
		case "..":
			if hasName {
				return true
			}
		default:
			hasName = true
		}
	}
	return false
}
