// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/generate/bin"
	"github.com/rs/zerolog"
)

// writeBOM writes the bill of materials: the programs, the Go modules that are linked into each, and the Debian
// packages (CycloneDX, ECMA-424).
func writeBOM(_ context.Context, o options) error {
	m, err := readManifest(o.stage)
	if err != nil {
		return err
	}
	programs, err := filepath.Glob(filepath.Join(o.stage, "linux-*", "*"))
	if err != nil {
		return err
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &cdx.Component{
		BOMRef: "drover", Type: cdx.ComponentTypeApplication, Name: "drover", Version: m.Version,
	}}
	components := map[string]cdx.Component{}
	dependencies := map[string]cdx.Dependency{}
	var contained []string
	for _, program := range programs {
		name, err := addProgram(program, m.Version, components, dependencies)
		if err != nil {
			return err
		}
		contained = append(contained, name)
	}
	for _, p := range m.Packages {
		c := describePackage(p)
		components[c.BOMRef] = c
		contained = append(contained, c.BOMRef)
	}
	slices.Sort(contained)
	contained = slices.Compact(contained)
	dependencies["drover"] = cdx.Dependency{Ref: "drover", Dependencies: &contained}
	bom.Components = sortedValues(components, func(c cdx.Component) string { return c.BOMRef })
	bom.Dependencies = sortedValues(dependencies, func(d cdx.Dependency) string { return d.Ref })
	return encodeBOM(bom, filepath.Join(o.out, "drover_"+m.Version+".cdx.json"))
}

// addProgram adds a program and its modules, and returns the program's reference.
func addProgram(path, version string, components map[string]cdx.Component, dependencies map[string]cdx.Dependency) (string, error) {
	generator, err := bin.NewGenerator(path, bin.WithIncludeStdlib(true), bin.WithVersionOverride(version), bin.WithLogger(zerolog.Nop()))
	if err != nil {
		return "", err
	}
	bom, err := generator.Generate()
	if err != nil {
		return "", err
	}
	name := filepath.Base(filepath.Dir(path)) + "/" + filepath.Base(path)
	var modules []string
	for _, c := range *bom.Components {
		components[c.BOMRef] = c
		modules = append(modules, c.BOMRef)
	}
	slices.Sort(modules)
	components[name] = cdx.Component{BOMRef: name, Type: cdx.ComponentTypeApplication, Name: name, Version: version}
	dependencies[name] = cdx.Dependency{Ref: name, Dependencies: &modules}
	return name, nil
}

// describePackage returns the component of a Debian package
// (https://github.com/package-url/purl-spec, type deb).
func describePackage(p Package) cdx.Component {
	properties := []cdx.Property{{Name: "drover:in", Value: p.In}}
	for _, s := range p.Sources {
		properties = append(properties, cdx.Property{Name: "drover:source", Value: s.String()})
	}
	return cdx.Component{
		BOMRef: "pkg:deb/debian/" + p.Name + "@" + p.Version + "?in=" + url.QueryEscape(p.In), Type: cdx.ComponentTypeLibrary, Name: p.Name, Version: p.Version,
		PackageURL: "pkg:deb/debian/" + p.Name + "@" + url.QueryEscape(p.Version) + "?arch=amd64",
		Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: p.SHA256}},
		Properties: &properties,
	}
}

// sortedValues returns the values of a map sorted by a key.
func sortedValues[T any](values map[string]T, key func(T) string) *[]T {
	sorted := slices.SortedFunc(maps.Values(values), func(a, b T) int { return cmp.Compare(key(a), key(b)) })
	return &sorted
}

func encodeBOM(bom *cdx.BOM, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
