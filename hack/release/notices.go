// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// program is a package whose program is in the release, with the module's folder in the checkout.
type program struct{ module, pattern string }

// programs are all programs of a release, that of guests, which is in the initramfs, included.
var programs = []program{{".", "./cmd/..."}, {"standalone", "."}}

// noticeName matches the names of files that a licence asks to be passed on.
var noticeName = regexp.MustCompile(`(?i)^(licen[sc]e|copying|copyright|notice|patents)([._-].*)?$`)

// writeNotices writes the notices of the Go modules in the programs, the standard library included: each text once,
// with the modules that it is of.
func writeNotices(ctx context.Context, o options) error {
	texts := map[string]map[string]bool{}
	for _, arch := range []string{"amd64", "arm64"} {
		for _, p := range programs {
			packages, err := listPackages(ctx, filepath.Join(o.checkout, p.module), arch, p.pattern)
			if err != nil {
				return err
			}
			for _, p := range packages {
				if err := p.addNotices(texts); err != nil {
					return err
				}
			}
		}
	}
	return os.WriteFile(filepath.Join(o.stage, "NOTICES"), formatNotices(texts), 0o644)
}

// goPackage is a package that is linked, and the module it is of.
type goPackage struct{ module, root, folder string }

// listPackages returns the packages of other modules that a program needs.
func listPackages(ctx context.Context, folder, arch, pattern string) ([]goPackage, error) {
	const format = `{{if .Standard}}Go	{{.Root}}	{{.Root}}{{else if not .Module.Main}}{{.Module.Path}} {{.Module.Version}}	{{.Module.Dir}}	{{.Dir}}{{end}}`
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-f", format, pattern)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s in %s: %w", pattern, folder, err)
	}
	var packages []goPackage
	for line := range strings.Lines(string(out)) {
		if fields := strings.Split(strings.TrimSpace(line), "\t"); len(fields) == 3 {
			packages = append(packages, goPackage{fields[0], fields[1], fields[2]})
		}
	}
	return packages, nil
}

// addNotices adds the notices in the package's folder and in those above it, up to that of the module.
func (p goPackage) addNotices(texts map[string]map[string]bool) error {
	for folder := p.folder; strings.HasPrefix(folder, p.root); folder = filepath.Dir(folder) {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if entry.IsDir() || !noticeName.MatchString(entry.Name()) || filepath.Ext(entry.Name()) == ".go" {
				continue
			}
			text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
			if err != nil {
				return err
			}
			key := string(bytes.TrimSpace(text))
			if texts[key] == nil {
				texts[key] = map[string]bool{}
			}
			texts[key][p.module] = true
		}
	}
	return nil
}

// formatNotices sorts the texts by the first module that each is of.
func formatNotices(texts map[string]map[string]bool) []byte {
	var sections []string
	for text, modules := range texts {
		names := slices.Sorted(maps.Keys(modules))
		sections = append(sections, strings.Join(names, "\n")+"\n\n"+text+"\n")
	}
	slices.Sort(sections)
	var b bytes.Buffer
	b.WriteString("Drover's programs contain these Go modules, under these licences.\n")
	for _, section := range sections {
		b.WriteString("\n" + strings.Repeat("-", 80) + "\n" + section)
	}
	return b.Bytes()
}
