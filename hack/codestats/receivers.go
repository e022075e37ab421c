// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxMethods is how many methods a type may have at most. The methods that it gets by embedding
// types of this project count as well, and those of interfaces: a decorator of driver.Driver gets
// five, which leaves it room. Methods of other projects' types do not count. Nor do the unexported
// ones of another package, which the type's package cannot call.
const maxMethods = 30

// sources imports the packages of a checkout from their source. It fails for all others, whose
// types the type checker then knows nothing of.
type sources struct {
	root, module string
	files        *token.FileSet
	imported     map[string]*types.Package // by path
}

// countMethods returns how many methods each type in some folders of a checkout has, by folder
// and type.
func countMethods(root string, folders []string) (map[string]int, error) {
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return nil, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	s := &sources{root: root, module: strings.TrimPrefix(line, "module "), files: token.NewFileSet(), imported: map[string]*types.Package{}}
	counts := map[string]int{}
	for _, folder := range folders {
		p, err := s.Import(s.module + "/" + folder)
		if err != nil {
			return nil, err
		}
		for _, name := range p.Scope().Names() {
			if declared, ok := p.Scope().Lookup(name).(*types.TypeName); ok && !declared.IsAlias() {
				counts[folder+" "+name] = countCallable(p, declared.Type())
			}
		}
	}
	return counts, nil
}

// countCallable returns how many methods of a type the package that declares it can call.
func countCallable(p *types.Package, declared types.Type) int {
	if !types.IsInterface(declared) {
		declared = types.NewPointer(declared)
	}
	count := 0
	for method := range types.NewMethodSet(declared).Methods() {
		if method.Obj().Exported() || method.Obj().Pkg() == p {
			count++
		}
	}
	return count
}

// Import implements types.Importer.
func (s *sources) Import(path string) (*types.Package, error) {
	folder, ok := strings.CutPrefix(path, s.module+"/")
	if !ok {
		return nil, fmt.Errorf("%s is not a package of %s", path, s.module)
	}
	if s.imported[path] == nil {
		files, err := s.parse(filepath.Join(s.root, folder))
		if err != nil {
			return nil, err
		}
		// Errors are about packages that are not imported. The compiler reports all others.
		config := types.Config{Importer: s, IgnoreFuncBodies: true, FakeImportC: true, Error: func(error) {}}
		s.imported[path], _ = config.Check(path, s.files, files, nil)
	}
	return s.imported[path], nil
}

// parse reads the files of a folder that are compiled on this platform, and were not generated.
func (s *sources) parse(folder string) ([]*ast.File, error) {
	found, err := build.ImportDir(folder, 0)
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, name := range found.GoFiles {
		file, err := parser.ParseFile(s.files, filepath.Join(folder, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parse: %w", err)
		}
		if !ast.IsGenerated(file) {
			files = append(files, file)
		}
	}
	return files, nil
}

// checkMethods fails if a type has more than maxMethods.
func checkMethods(out io.Writer, methods map[string]int) error {
	large := 0
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		if methods[name] > maxMethods {
			large++
			_, _ = fmt.Fprintf(out, "%s has %d methods, those of embedded types included, at most %d are allowed\n", name, methods[name], maxMethods)
		}
	}
	if large > 0 {
		return fmt.Errorf("%d types have too many methods: move some to the types whose data they use", large)
	}
	return nil
}
