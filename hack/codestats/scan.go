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
	"slices"
	"strings"
	"unicode"
)

// stats has the figures of one checkout.
type stats struct {
	packages map[string]*packageStats // by folder
	// tests are Go files of tests and of packages that only tests use. generated and pages are Markdown.
	tests, shell, yaml, generated, pages, decisions, readme size
	flags, reasons                                          int
	wordings                                                map[string]*wording // by package or page
}

// wording has the language of a package, tests included, or of a page.
type wording struct {
	size     int // in lines of Go, or words of a page
	oddities []oddity
}

// size is the sum over the files of one kind.
type size struct{ files, lines, words int }

// packageStats has the figures of one package of production code.
type packageStats struct {
	files, lines int
	names        []string // of unexported functions and methods
	lengths      []int    // of function bodies, in lines
}

// scanCheckout reads all Go files, scripts, YAML and Markdown pages below root.
func scanCheckout(root string) (*stats, error) {
	s := &stats{packages: map[string]*packageStats{}, wordings: map[string]*wording{}}
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
	kind := s.kindOf(relative)
	if kind == nil && !strings.HasSuffix(path, ".go") {
		return nil
	}
	text, err := os.ReadFile(path)
	switch {
	case err != nil:
		return err
	case kind == nil:
		return s.scanGo(relative, text)
	case relative == "docs/flags.md":
		s.flags = len(flagRow.FindAll(text, -1))
	}
	kind.add(text)
	if strings.HasSuffix(relative, ".md") && kind != &s.generated && relative != changelog {
		s.wordingAt(relative).add(relative, len(bytes.Fields(text)), passagesOfPage(text))
	}
	return nil
}

// changelog is history, whose language stays as it was.
const changelog = "CHANGELOG.md"

func (s *stats) wordingAt(name string) *wording {
	if s.wordings[name] == nil {
		s.wordings[name] = &wording{}
	}
	return s.wordings[name]
}

func (w *wording) add(file string, size int, passages []passage) {
	w.size += size
	w.oddities = append(w.oddities, findOddities(file, passages)...)
}

// flagRow begins the row of a flag in docs/flags.md.
var flagRow = regexp.MustCompile("(?m)^\\| `--")

// kindOf returns where a file that is not Go is counted, nil if nowhere.
func (s *stats) kindOf(relative string) *size {
	switch extension := filepath.Ext(relative); {
	case extension == ".sh":
		return &s.shell
	case extension == ".yaml", extension == ".yml":
		return &s.yaml
	case extension != ".md":
		return nil
	case relative == "docs/api.md", relative == "docs/flags.md", relative == "docs/rights.md", relative == "docs/troubleshooting.md":
		return &s.generated
	case relative == "README.md":
		return &s.readme
	case strings.HasPrefix(relative, "docs/adr/"):
		return &s.decisions
	}
	return &s.pages
}

func (n *size) add(text []byte) {
	n.files++
	n.lines += bytes.Count(text, []byte("\n"))
	n.words += len(bytes.Fields(text))
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
	folder := filepath.Dir(relative)
	lines := bytes.Count(text, []byte("\n"))
	s.wordingAt(folder).add(relative, lines, passagesOfGo(text))
	if !isProduction(relative) {
		if !strings.HasPrefix(relative, "hack/") || strings.HasSuffix(relative, "_test.go") {
			s.tests.add(text)
		}
		return nil
	}
	s.packageAt(folder).add(files, file, lines)
	s.reasons += countReasons(relative, file)
	return nil
}

// isProduction reports whether a file is part of a program that users run.
func isProduction(relative string) bool {
	if strings.HasSuffix(relative, "_test.go") {
		return false
	}
	folders := strings.Split(filepath.Dir(relative), "/")
	if slices.ContainsFunc(folders, func(folder string) bool { return strings.HasSuffix(folder, "test") }) {
		return false
	}
	return slices.Contains([]string{"apis", "cmd", "internal", "standalone"}, folders[0])
}

// countReasons returns how many reasons of conditions and events a file of the API types declares.
func countReasons(relative string, file *ast.File) int {
	if !strings.HasPrefix(relative, "apis/") {
		return 0
	}
	count := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if declared, ok := n.(*ast.ValueSpec); ok && reasonName.MatchString(declared.Names[0].Name) {
			count++
		}
		return true
	})
	return count
}

// reasonName is the name of a constant that is a reason.
var reasonName = regexp.MustCompile(`^(Reason|Event)[A-Z]`)

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
