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
)

// namedLinks is how many of the links that were left out an error names.
const namedLinks = 3

// LinksError means that symbolic links of a stream were left out, because they lead out of the folder of the stream.
// Everything else has been made.
type LinksError struct {
	count int
	named []string
}

// Error implements error.
func (e *LinksError) Error() string {
	text := fmt.Sprintf("%d symbolic links were not made, since they lead out of the folder that was copied: %s", e.count, strings.Join(e.named, "; "))
	if more := e.count - len(e.named); more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// add counts a link, and names it if it is one of the first.
func (e *LinksError) add(name, target string, cause error) {
	if e.count++; len(e.named) < namedLinks {
		e.named = append(e.named, fmt.Sprintf("%.200q to %.200q: %v", name, target, cause))
	}
}

// err returns the error, or nil if no link was left out.
func (e *LinksError) err() error {
	if e.count == 0 {
		return nil
	}
	return e
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
