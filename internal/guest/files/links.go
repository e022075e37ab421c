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

// leadsOutError means that a symbolic link leads out of the folder that is copied to.
type leadsOutError struct {
	target string
	cause  error
}

// Error implements error.
func (e *leadsOutError) Error() string {
	return fmt.Sprintf("the link to %.200q: %v", e.target, e.cause)
}

// followInside returns the name to which a name leads that may be a symbolic link. It fails with a leadsOutError if
// that is outside of the root.
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

// checkFolders returns an error if a name has a symbolic link in place of a folder. Links would be checked at one place
// and made at another.
func checkFolders(root *os.Root, name string) error {
	folder := ""
	for element := range strings.SplitSeq(filepath.ToSlash(filepath.Dir(name)), "/") {
		folder = filepath.Join(folder, element)
		info, err := root.Lstat(folder)
		if err == nil && info.Mode().Type() == fs.ModeSymlink {
			err = fmt.Errorf("the archive has %.200q in %.200q, which is a symbolic link", name, folder)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkLink returns an error if a symbolic link leads out of the root. No folder of its name is a link (checkFolders).
// Every ".." has to be at the beginning of the target, where it is taken from the folder of the link. Behind another
// name it would be taken from wherever that name leads. So what is made later cannot turn the link elsewhere.
func checkLink(root *os.Root, name, target string) error {
	to := path.Join(filepath.ToSlash(filepath.Dir(name)), target)
	switch {
	case path.IsAbs(target):
		return errors.New("the target is absolute")
	case hasParentBehindName(target):
		return errors.New(`the target has ".." behind a name`)
	case !filepath.IsLocal(to):
		return errors.New("the target is above the folder")
	}
	if _, err := root.Stat(filepath.FromSlash(to)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cmp.Or(errors.Unwrap(err), err) // such as a link of the user's that leads out
	}
	return nil
}

// hasParentBehindName reports whether a path has ".." behind a name.
func hasParentBehindName(target string) bool {
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
