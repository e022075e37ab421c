// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// Manifest names the commit of Drover's sources, and everything else that determines the bytes of a release, apart from
// the Go modules, which go.sum names.
type Manifest struct {
	// Version is Drover's.
	Version string `json:"version"`
	// Commit is the commit of Drover's sources; -dirty follows if they were changed.
	Commit string `json:"commit"`
	// Time is the time of all files, in seconds since 1970.
	Time int64 `json:"time"`
	// Go is the version of the compiler.
	Go string `json:"go"`
	// Packages are the Debian packages from which files were taken, sorted by name.
	Packages []Package `json:"packages"`
}

// Package is a Debian package.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// SHA256 is the checksum of the .deb file.
	SHA256 string `json:"sha256"`
	// In names the part of the release that has files of the package.
	In string `json:"in"`
	// Sources are the source packages that the package was built from.
	Sources []Source `json:"sources"`
}

// Source is a Debian source package.
type Source struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

func (s Source) String() string { return s.Name + "=" + s.Version }

// readManifest returns the manifest of a stage.
func readManifest(stage string) (Manifest, error) {
	var m Manifest
	content, err := os.ReadFile(filepath.Join(stage, "manifest.json"))
	if err == nil {
		err = json.Unmarshal(content, &m)
	}
	return m, err
}

// writeManifest describes the stage, and refuses one that is not as expected.
func writeManifest(_ context.Context, o options) error {
	m, err := describeStage(o)
	if err != nil {
		return err
	}
	if o.expected != "" {
		if err := compareManifest(o.expected, m); err != nil {
			return err
		}
	}
	content, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.stage, "manifest.json"), append(content, '\n'), 0o644)
}

// describeStage collects the manifest from the stage's files.
func describeStage(o options) (Manifest, error) {
	version, err := os.ReadFile(filepath.Join(o.checkout, "VERSION"))
	if err != nil {
		return Manifest{}, err
	}
	info, err := os.Stat(filepath.Join(o.stage, "time"))
	if err != nil {
		return Manifest{}, err
	}
	commit, err := os.ReadFile(filepath.Join(o.stage, "commit"))
	if err != nil {
		return Manifest{}, err
	}
	m := Manifest{Version: strings.TrimSpace(string(version)), Commit: strings.TrimSpace(string(commit)), Time: info.ModTime().Unix(), Go: runtime.Version()}
	for _, readPackages := range []func(string) ([]Package, error){readKernel, readBuiltInImage, readMachineImage} {
		packages, err := readPackages(o.stage)
		if err != nil {
			return Manifest{}, err
		}
		m.Packages = append(m.Packages, packages...)
	}
	slices.SortFunc(m.Packages, func(a, b Package) int { return strings.Compare(a.Name+" "+a.In, b.Name+" "+b.In) })
	return m, nil
}

// compareManifest returns an error that names the differences of the manifest from the one in a file.
func compareManifest(path string, m Manifest) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var want Manifest
	if err := json.Unmarshal(content, &want); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var differences []error
	have, expected := valuesOf(m), valuesOf(want)
	for name, value := range expected {
		if have[name] != value {
			differences = append(differences, fmt.Errorf("%s is %q, but %s has %q", name, have[name], path, value))
		}
	}
	for name, value := range have {
		if _, ok := expected[name]; !ok {
			differences = append(differences, fmt.Errorf("%s is %q, which %s does not name", name, value, path))
		}
	}
	slices.SortFunc(differences, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(differences...)
}

// valuesOf returns the values of a manifest by name.
func valuesOf(m Manifest) map[string]string {
	values := map[string]string{"version": m.Version, "commit": m.Commit, "time": fmt.Sprint(m.Time), "go": m.Go}
	for _, p := range m.Packages {
		values["package "+p.Name+" in "+p.In] = fmt.Sprint(p.Version, " ", p.SHA256, " ", p.Sources)
	}
	return values
}

// described is a description that hack/guest-kernel.sh or hack/busybox.sh has written.
type described struct {
	Package, Version, Source, BuiltUsing, PackageSHA256 string
}

func readKernel(stage string) ([]Package, error) {
	return readDescribed(filepath.Join(stage, "guest", "kernel.json"), "kernel of guests")
}

func readBuiltInImage(stage string) ([]Package, error) {
	return readDescribed(filepath.Join(stage, "guest", "image.json"), "built-in image")
}

func readDescribed(path, in string) ([]Package, error) {
	var d described
	content, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(content, &d)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	sources, err := parseSources(d.Source + ", " + d.BuiltUsing)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return []Package{{Name: d.Package, Version: d.Version, SHA256: d.PackageSHA256, In: in, Sources: sources}}, nil
}

// sourcePattern matches "linux 6.1.1-1", "busybox (1:1.35.0-4)" and "glibc (= 2.36-9)".
var sourcePattern = regexp.MustCompile(`^([a-z0-9][a-z0-9.+-]*) \(?(?:= )?([0-9A-Za-z.+:~-]+)\)?$`)

// parseSources parses sources as the fields Source and Built-Using name them.
func parseSources(text string) ([]Source, error) {
	var sources []Source
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		match := sourcePattern.FindStringSubmatch(part)
		if match == nil {
			return nil, fmt.Errorf("source %q is not a name and a version", part)
		}
		sources = append(sources, Source{Name: match[1], Version: match[2]})
	}
	return sources, nil
}

// machineImage is the part of the release that driver pod runs.
const machineImage = "image of drover-machine"

// readMachineImage reads the list that hack/machine-root.sh has written: a package a line, with its version,
// its source, the version of that, and the checksum.
func readMachineImage(stage string) ([]Package, error) {
	content, err := os.ReadFile(filepath.Join(stage, "machine-packages"))
	if err != nil {
		return nil, err
	}
	var packages []Package
	scanner := bufio.NewScanner(bytes.NewReader(content))
	for scanner.Scan() {
		fields := strings.Fields(scanner.Text())
		if len(fields) != 5 {
			return nil, fmt.Errorf("machine-packages: line %q has %d fields, 5 are required", scanner.Text(), len(fields))
		}
		packages = append(packages, Package{
			Name: fields[0], Version: fields[1], SHA256: fields[4], In: machineImage,
			Sources: []Source{{Name: fields[2], Version: fields[3]}},
		})
	}
	return packages, scanner.Err()
}

// printSources prints each source package once, as apt-get source takes it.
func printSources(_ context.Context, o options) error {
	m, err := readManifest(o.stage)
	if err != nil {
		return err
	}
	var names []string
	for _, p := range m.Packages {
		for _, s := range p.Sources {
			names = append(names, s.String())
		}
	}
	slices.Sort(names)
	_, err = fmt.Println(strings.Join(slices.Compact(names), "\n"))
	return err
}
