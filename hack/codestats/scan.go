// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
)

// counted are the words whose lines are counted: they give things a will of
// their own, or leave out who does what.
var counted = regexp.MustCompile(`(?i)\b(told|tells|nobody|somebody|mend(s|ed|ing)?)\b`)

// stats is what was read from one checkout.
type stats struct {
	packages map[string]*packageStats // by folder
	// Lines with a counted word.
	productionLines, testLines, docLines int
}

// packageStats is what was read from one package of production code.
type packageStats struct {
	files, lines int
	names        []string // of unexported functions and methods
	lengths      []int    // of function bodies, in lines
}

// scanCheckout reads all Go files and Markdown pages below root.
func scanCheckout(root string) (*stats, error) {
	s := &stats{packages: map[string]*packageStats{}}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if isSkipped(relative) {
				return fs.SkipDir
			}
			return nil
		}
		return s.scanFile(path, filepath.ToSlash(relative))
	})
	return s, err
}

// isSkipped reports whether a folder has nothing that people wrote for Drover.
func isSkipped(relative string) bool {
	base := filepath.Base(relative)
	return relative == "bin" || relative == "client" || base == "testdata" || base == "node_modules" ||
		strings.HasPrefix(base, ".") && relative != "."
}

func (s *stats) scanFile(path, relative string) error {
	isGo := strings.HasSuffix(path, ".go")
	if !isGo && !strings.HasSuffix(path, ".md") {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if isGo {
		return s.scanGo(relative, text)
	}
	for line := range bytes.Lines(text) {
		if counted.Match(line) {
			s.docLines++
		}
	}
	return nil
}

func (s *stats) scanGo(relative string, text []byte) error {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, relative, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return fmt.Errorf("parse: %w", err)
	}
	if ast.IsGenerated(file) {
		return nil
	}
	if !isProduction(relative, file.Name.Name) {
		s.testLines += countLines(file)
		return nil
	}
	s.productionLines += countLines(file)
	s.packageAt(filepath.Dir(relative)).add(files, file, bytes.Count(text, []byte("\n")))
	return nil
}

// isProduction reports whether a file is part of a program that users run.
func isProduction(relative, packageName string) bool {
	if strings.HasSuffix(relative, "_test.go") || strings.HasSuffix(packageName, "test") {
		return false
	}
	top, _, _ := strings.Cut(relative, "/")
	return top == "apis" || top == "cmd" || top == "internal" || top == "standalone"
}

// countLines returns the number of comment lines with a counted word.
func countLines(file *ast.File) int {
	lines := 0
	for _, group := range file.Comments {
		for _, comment := range group.List {
			for line := range strings.Lines(comment.Text) {
				if counted.MatchString(line) {
					lines++
				}
			}
		}
	}
	return lines
}

func (s *stats) packageAt(folder string) *packageStats {
	if s.packages[folder] == nil {
		s.packages[folder] = &packageStats{}
	}
	return s.packages[folder]
}

func (p *packageStats) add(files *token.FileSet, file *ast.File, lines int) {
	p.files++
	p.lines += lines
	for _, declaration := range file.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok || function.Body == nil {
			continue
		}
		p.lengths = append(p.lengths, bodyLines(files, function.Body))
		if name := function.Name.Name; !ast.IsExported(name) && !isGivenByGo(name) {
			p.names = append(p.names, name)
		}
	}
}

// bodyLines returns the number of lines between the braces, one at least.
func bodyLines(files *token.FileSet, body *ast.BlockStmt) int {
	return max(1, files.Position(body.Rbrace).Line-files.Position(body.Lbrace).Line-1)
}

func isGivenByGo(name string) bool {
	return name == "main" || name == "init" || name == "_"
}

// isOneWord reports whether a name in camel case has a single word: only the
// first word of an unexported name begins without a capital.
func isOneWord(name string) bool {
	for i, letter := range name {
		if i > 0 && (unicode.IsUpper(letter) || letter == '_') {
			return false
		}
	}
	return true
}
