// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// DefaultPath is the PATH of an image that sets none, as container engines have it.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// LookPath returns the file of a program: one with a slash is a path from dir on, any other is
// looked for in the folders of the variable PATH of env.
func LookPath(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		return path, check(name, path)
	}
	folders, _ := Getenv(env, "PATH")
	for _, folder := range filepath.SplitList(folders) {
		if !filepath.IsAbs(folder) {
			folder = filepath.Join(dir, folder)
		}
		if path := filepath.Join(folder, name); check(name, path) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%.200q is %w in the folders of PATH, %.400q", name, ErrNotFound, folders)
}

// check returns an error if a file is not a program.
func check(name, path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%.200q is %w in the image", name, ErrNotFound)
	case err != nil:
		return fmt.Errorf("%.200q is %w: %w", name, ErrNotExecutable, err)
	case info.IsDir():
		return fmt.Errorf("%.200q is %w: it is a folder", name, ErrNotExecutable)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fmt.Errorf("%.200q is %w: its mode is %s", name, ErrNotExecutable, info.Mode())
	}
	return nil
}

// Getenv returns a variable of an environment.
func Getenv(env []string, name string) (value string, isSet bool) {
	for _, entry := range slices.Backward(env) {
		if value, isSet = strings.CutPrefix(entry, name+"="); isSet {
			return value, true
		}
	}
	return "", false
}

// Environment returns entries with one for each name, the last, and further ones for names that
// are missing or, for HOME, empty.
func Environment(entries []string, missing ...string) []string {
	env := make([]string, 0, len(entries)+len(missing))
	place := map[string]int{}
	for _, entry := range entries {
		name, _, _ := strings.Cut(entry, "=")
		if i, isThere := place[name]; isThere {
			env[i] = entry
			continue
		}
		place[name] = len(env)
		env = append(env, entry)
	}
	for _, entry := range missing {
		name, _, _ := strings.Cut(entry, "=")
		if i, isThere := place[name]; !isThere {
			env = append(env, entry)
		} else if name == "HOME" && env[i] == "HOME=" {
			env[i] = entry
		}
	}
	return env
}
