// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// source is a file with the types of its expressions.
type source struct {
	name string // from the module's folder
	text []byte
	tree *ast.File
	file *token.File
	info *types.Info
}

// loader type-checks packages, with the compiler's export data of what they import.
type loader struct {
	root    string
	files   *token.FileSet
	exports map[string]string // file by import path
	imports types.Importer
}

// loadSources reads the named files and type-checks their packages.
func loadSources(ctx context.Context, root string, names []string) ([]*source, error) {
	var folders []string
	wanted := map[string][]string{}
	for _, name := range names {
		folder := filepath.Dir(name)
		if wanted[folder] == nil {
			folders = append(folders, folder)
		}
		wanted[folder] = append(wanted[folder], name)
	}
	l := &loader{root: root, files: token.NewFileSet(), exports: map[string]string{}}
	l.imports = importer.ForCompiler(l.files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(l.exports[path]) })
	if err := l.listExports(ctx, folders); err != nil {
		return nil, err
	}
	var all []*source
	for _, folder := range folders {
		sources, err := l.loadPackage(ctx, folder, wanted[folder])
		if err != nil {
			return nil, err
		}
		all = append(all, sources...)
	}
	return all, nil
}

func (l *loader) listExports(ctx context.Context, folders []string) error {
	arguments := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}"}
	for _, folder := range folders {
		arguments = append(arguments, "./"+folder)
	}
	out, err := runGo(ctx, l.root, arguments...)
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		if path, file, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			l.exports[path] = file
		}
	}
	return nil
}

// loadPackage type-checks the package of a folder and returns those of its files that are
// wanted.
func (l *loader) loadPackage(ctx context.Context, folder string, wanted []string) ([]*source, error) {
	out, err := runGo(ctx, l.root, "list", "-f", `{{.ImportPath}}{{range .GoFiles}} {{.}}{{end}}`, "./"+folder)
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(out)
	info := &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{},
	}
	byName := map[string]*source{}
	var trees []*ast.File
	for _, base := range fields[1:] {
		name := filepath.Join(folder, base)
		text, err := os.ReadFile(filepath.Join(l.root, name))
		if err != nil {
			return nil, err
		}
		tree, err := parser.ParseFile(l.files, name, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		trees = append(trees, tree)
		byName[name] = &source{name, text, tree, l.files.File(tree.Pos()), info}
	}
	config := types.Config{Importer: l.imports}
	if _, err := config.Check(fields[0], l.files, trees, info); err != nil {
		return nil, err
	}
	var sources []*source
	for _, name := range wanted {
		if byName[name] == nil {
			return nil, fmt.Errorf("%s is not a file of package %s", name, fields[0])
		}
		sources = append(sources, byName[name])
	}
	return sources, nil
}

func runGo(ctx context.Context, root string, arguments ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", arguments...)
	cmd.Dir = root
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(arguments[:min(len(arguments), 3)], " "), err, problems.String())
	}
	return string(out), nil
}
