// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the packager
)

// writePackage writes the Debian package, which config/debian/nfpm.yaml describes.
func writePackage(_ context.Context, o options) error {
	m, err := readManifest(o.stage)
	if err != nil {
		return err
	}
	if o.out, err = filepath.Abs(o.out); err != nil {
		return err
	}
	if err := os.Chdir(o.stage); err != nil { // the description has paths in it
		return err
	}
	info, err := readPackage(m)
	if err != nil {
		return err
	}
	packager, err := nfpm.Get("deb")
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(o.out, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	if err := packager.Package(info, f); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// readPackage reads the description of the package, with the values of this release in it.
func readPackage(m Manifest) (*nfpm.Info, error) {
	values := map[string]string{"VERSION": m.Version, "BUILT_USING": builtUsing(m)}
	c, err := nfpm.ParseFileWithEnvMapping("package/nfpm.yaml", func(name string) string { return values[name] })
	if err != nil {
		return nil, err
	}
	info, err := c.Get("deb")
	if err != nil {
		return nil, err
	}
	info.MTime = time.Unix(m.Time, 0).UTC()
	info = nfpm.WithDefaults(info)
	for _, file := range info.Contents { // the files on disk have the time of the build
		if file.FileInfo != nil {
			file.FileInfo.MTime = info.MTime
		}
	}
	return info, nil
}

// builtUsing is the field that says which sources the GPL's parts of the package were built from
// (Debian Policy 7.8).
func builtUsing(m Manifest) string {
	var sources []string
	for _, p := range m.Packages {
		if p.In == machineImage {
			continue // not in this package
		}
		for _, s := range p.Sources {
			sources = append(sources, s.Name+" (= "+s.Version+")")
		}
	}
	slices.Sort(sources)
	return strings.Join(slices.Compact(sources), ", ")
}
