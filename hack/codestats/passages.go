// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"go/scanner"
	"go/token"
	"slices"
	"strconv"
	"strings"
)

// passage is a text that is read as one, such as a comment of several lines.
type passage struct {
	source source
	text   []byte
	lines  []lineStart
}

// lineStart is where a line of a file begins in a passage.
type lineStart struct{ offset, line int }

// add appends a line. Spaces around it are left out, and one separates it from the line before.
func (p *passage) add(line int, text string) {
	if len(p.lines) > 0 {
		p.text = append(p.text, ' ')
	}
	p.lines = append(p.lines, lineStart{len(p.text), line})
	p.text = append(p.text, strings.TrimSpace(text)...)
}

// lineAt returns the line of the file that a passage has at an offset.
func (p *passage) lineAt(offset int) int {
	next, _ := slices.BinarySearchFunc(p.lines, offset+1, func(start lineStart, offset int) int { return start.offset - offset })
	return p.lines[next-1].line
}

// excerpt returns a part of a passage with a few letters around it.
func (p *passage) excerpt(start, end int) string {
	const around = 25
	return strings.ToValidUTF8(string(p.text[max(0, start-around):min(len(p.text), end+around)]), "")
}

// splitParagraphs joins lines up to the next empty one. first is the number of the first line.
func splitParagraphs(source source, first int, lines []string) []passage {
	var all []passage
	ended := true
	for i, line := range lines {
		if strings.TrimSpace(line) == "" {
			ended = true
			continue
		}
		if ended {
			all = append(all, passage{source: source})
			ended = false
		}
		all[len(all)-1].add(first+i, line)
	}
	return all
}

// passagesOfPage returns the paragraphs of Markdown.
func passagesOfPage(text []byte) []passage {
	return splitParagraphs(page, 1, strings.Split(string(text), "\n"))
}

// passagesOfGo returns the comments and strings of a file, and its code without them.
// Comments of adjacent lines are one text.
func passagesOfGo(text []byte) []passage {
	var all []passage
	var block []string // lines of a comment
	var first int      // the line where it begins
	rest := bytes.Clone(text)
	scanTokens(text, func(line, offset int, kind token.Token, value string) {
		if kind != token.COMMENT || line != first+len(block) {
			all = append(all, splitParagraphs(comment, first, block)...)
			block, first = nil, line
		}
		switch kind {
		case token.COMMENT:
			block = append(block, commentLines(value)...)
		case token.STRING:
			all = append(all, splitParagraphs(literal, line, literalLines(value))...)
		default:
			return
		}
		overwriteText(rest[offset : offset+len(value)])
	})
	all = append(all, splitParagraphs(comment, first, block)...)
	return append(all, passageOfCode(string(rest)))
}

func passageOfCode(text string) passage {
	p := passage{source: code}
	for i, line := range strings.Split(text, "\n") {
		p.add(i+1, line)
	}
	return p
}

// scanTokens calls visit with each token of a file, comments included, but not with the
// semicolons that Go inserts.
func scanTokens(text []byte, visit func(line, offset int, kind token.Token, value string)) {
	file := token.NewFileSet().AddFile("", -1, len(text))
	var tokens scanner.Scanner
	tokens.Init(file, text, nil, scanner.ScanComments)
	for {
		pos, kind, value := tokens.Scan()
		if kind == token.EOF {
			return
		}
		if kind != token.SEMICOLON || value == ";" {
			visit(file.PositionFor(pos, false).Line, file.Offset(pos), kind, value)
		}
	}
}

// commentLines returns the lines of a comment without its marks.
func commentLines(value string) []string {
	if text, found := strings.CutPrefix(value, "//"); found {
		return []string{text}
	}
	return strings.Split(strings.TrimSuffix(strings.TrimPrefix(value, "/*"), "*/"), "\n")
}

// literalLines returns the lines of a string. One between double quotes is a single line of its file.
func literalLines(value string) []string {
	if strings.HasPrefix(value, "`") {
		return strings.Split(strings.Trim(value, "`"), "\n")
	}
	text, err := strconv.Unquote(value)
	if err != nil {
		text = value
	}
	return []string{text}
}

// overwriteText overwrites a text, except for line ends.
func overwriteText(text []byte) {
	for i, letter := range text {
		if letter != '\n' {
			text[i] = '"'
		}
	}
}
