// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package modules loads modules of the kernel by the files that depmod(8) makes: by their names, or by aliases under which
// the kernel and programs ask for them. It follows modprobe(8), without a configuration.
//
// Start with Load. Find returns what it loads.
package modules

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Program is an empty file of the disk with the kernel's modules. The guest's program is mounted there, so that the kernel
// starts it to load a module, with a path that ends with this name.
const Program = "modprobe"

// Devices is depmod's modules.devname by another name: an init that finds modules.devname makes the devices by the
// image's kmod, which few images have.
const Devices = "devices"

// ErrNotFound means that no module has the name or alias. It may be a part of the kernel.
var ErrNotFound = errors.New("there is no such module")

// Load loads the modules that have a name or alias, behind all that they need. It goes on after an error: a
// module may only have asked for another one.
func Load(folder, name string) error {
	files, err := Find(folder, name)
	for _, file := range files {
		if failed := Insert(filepath.Join(folder, file)); failed != nil {
			err = errors.Join(err, fmt.Errorf("load %s: %w", file, failed))
		}
	}
	return err
}

// Find returns the files of the modules that have a name or alias, in the order in which they must be loaded.
func Find(folder, name string) ([]string, error) {
	s := &search{folder: folder, seen: map[string]bool{}}
	needs, err := s.read("modules.dep")
	if err != nil {
		return nil, err
	}
	s.needs = map[string]string{}
	for line := range strings.Lines(needs) {
		file, rest, _ := strings.Cut(line, ":")
		s.needs[nameOf(file)] = file + rest
	}
	if s.wishes, err = s.read("modules.softdep"); err != nil {
		return nil, err
	}
	found, err := s.lookUp(name)
	if err != nil {
		return nil, err
	}
	for _, module := range found {
		err = errors.Join(err, s.add(module))
	}
	return s.files, err
}

// search collects files.
type search struct {
	folder string
	// needs has the file of each module by its name, and the files of all modules that it needs, the last one first.
	needs map[string]string
	// wishes has modules that a module asks for, a line each.
	wishes string
	seen   map[string]bool
	files  []string
}

func (s *search) read(file string) (string, error) {
	text, err := os.ReadFile(filepath.Join(s.folder, file)) //nolint:gosec // of the caller's folder
	return string(text), err
}

// lookUp returns the names of the modules that have a name or alias.
func (s *search) lookUp(name string) (found []string, err error) {
	name = normalizeName(name)
	if _, isModule := s.needs[name]; isModule {
		return []string{name}, nil
	}
	file := "modules.alias"
	if strings.HasPrefix(name, "symbol:") {
		file = "modules.symbols"
	}
	aliases, err := s.read(file)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(aliases) {
		if fields := strings.Fields(line); len(fields) == 3 && matchesAlias(fields[1], name) && !slices.Contains(found, fields[2]) {
			found = append(found, fields[2])
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: %.200q", ErrNotFound, name)
	}
	return found, nil
}

// add adds a module behind those that it needs.
func (s *search) add(module string) error {
	if s.seen[module] {
		return nil
	}
	s.seen[module] = true
	files := strings.Fields(s.needs[module])
	slices.Reverse(files)
	var err error
	for _, file := range files {
		before, after := s.wishesOf(nameOf(file))
		err = errors.Join(err, s.addWished(before))
		if !slices.Contains(s.files, file) {
			s.files = append(s.files, file)
		}
		err = errors.Join(err, s.addWished(after))
	}
	return err
}

// addWished adds modules that another one asks for. Those that are a part of the kernel are not found.
func (s *search) addWished(names []string) (err error) {
	for _, name := range names {
		found, failed := s.lookUp(name)
		if failed != nil && !errors.Is(failed, ErrNotFound) {
			err = errors.Join(err, failed)
		}
		for _, module := range found {
			err = errors.Join(err, s.add(module))
		}
	}
	return err
}

// wishesOf returns the modules that a module asks for before and after it, in a line such as "softdep btrfs pre: sha256".
// As for modprobe(8), only the first line of a module counts.
func (s *search) wishesOf(module string) (before, after []string) {
	for line := range strings.Lines(s.wishes) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "softdep" || normalizeName(fields[1]) != module {
			continue
		}
		var ignored []string // what stands before both words
		list := &ignored
		for _, field := range fields[2:] {
			switch field {
			case "pre:":
				list = &before
			case "post:":
				list = &after
			default:
				*list = append(*list, field)
			}
		}
		return before, after
	}
	return nil, nil
}

// nameOf returns the name of the module in a file.
func nameOf(file string) string {
	return normalizeName(strings.TrimSuffix(path.Base(file), ".ko"))
}

// normalizeName replaces dashes, which mean the same as underscores, except in the brackets of a pattern.
func normalizeName(name string) string {
	inBrackets := false
	return strings.Map(func(r rune) rune {
		switch {
		case r == '[':
			inBrackets = true
		case r == ']':
			inBrackets = false
		case r == '-' && !inBrackets:
			return '_'
		}
		return r
	}, name)
}

// matchesAlias reports whether a normalized name has an alias, which may be a pattern of fnmatch(3).
func matchesAlias(alias, name string) bool {
	if !strings.ContainsAny(alias, "*?[") {
		return normalizeName(alias) == name
	}
	plain := strings.NewReplacer("/", "\x00") // which path.Match does not keep apart
	ok, _ := path.Match(plain.Replace(normalizeName(alias)), plain.Replace(name))
	return ok
}
