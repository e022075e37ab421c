# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# A guest in one boot sector, for tests: up in milliseconds, and all of it fits
# on a page. hack/boot-guest.sh assembles it.
#
# It prints "drover guest N" and a letter to the serial port, where N counts its
# boots in the disk's second sector, and then halts, wakes up 18 times a second
# and looks around:
#
#   power button    powers off, unless STUBBORN is set or "i" came
#   "b" by serial   burns CPU from now on
#   "i" by serial   ignores the power button from now on
#   "p" by serial   panics (pvpanic)
#   "r" by serial   resets
#   "x" by serial   powers off by itself
#
# The ports are those of QEMU's q35 and pc machines with SeaBIOS.
	.code16
	.globl _start
	.set COM1, 0x3f8
	.set PM1_STATUS, 0x600		# bit 8: the power button was pressed
	.set PM1_ENABLE, 0x602		# bit 8: report the power button
	.set PM1_CONTROL, 0x604		# bit 13: sleep now, type 0: off
	.set PVPANIC, 0x505
	.set SECTOR2, 0x8000		# where the second sector goes

_start:	cli
	xor	%ax, %ax
	mov	%ax, %ds
	mov	%ax, %es
	mov	%ax, %ss
	mov	$0x7c00, %sp
	ljmp	$0, $begin
begin:	mov	%dl, drive		# that the BIOS booted from
	in	$0xa1, %al		# IRQ 9 is ACPI's; this guest has no handler for it
	or	$2, %al
	out	%al, $0xa1
	sti
	mov	$PM1_ENABLE, %dx
	mov	$0x100, %ax
	out	%ax, %dx

	mov	$0x0201, %ax		# read one sector
	call	disk
	incb	SECTOR2
	mov	$0x0301, %ax		# write one sector
	call	disk
	mov	$banner, %si
	call	print
	mov	SECTOR2, %al
	and	$7, %al
	add	$'0', %al
	call	putc
	mov	$tail, %si
	call	print

loop:	hlt
busy:	mov	$PM1_STATUS, %dx
	in	%dx, %ax
	test	$1, %ah
	jz	serial
	out	%ax, %dx		# writing the bit clears it
	cmpb	$0, deaf
	je	off
serial:	mov	$COM1 + 5, %dx
	in	%dx, %al
	test	$1, %al			# has a byte come?
	jz	again
	mov	$COM1, %dx
	in	%dx, %al
	cmp	$'x', %al
	je	off
	cmp	$'p', %al
	je	panic
	cmp	$'r', %al
	je	reset
	cmp	$'i', %al
	sete	%ah
	or	%ah, deaf
	cmp	$'b', %al
	sete	%ah
	or	%ah, burns
	call	putc			# says that it has heard
again:	cmpb	$0, burns
	jne	busy
	jmp	loop

off:	mov	$PM1_CONTROL, %dx
	mov	$0x2000, %ax
	out	%ax, %dx
	jmp	stay
panic:	mov	$PVPANIC, %dx
	mov	$1, %al
	out	%al, %dx
	jmp	stay
reset:	mov	$0xfe, %al
	out	%al, $0x64
stay:	hlt
	jmp	stay

disk:	mov	$SECTOR2, %bx
	mov	$2, %cx			# cylinder 0, sector 2
	mov	$0, %dh
	mov	drive, %dl
	int	$0x13
	ret

print:	lodsb
	test	%al, %al
	jz	1f
	call	putc
	jmp	print
putc:	push	%ax
	mov	$COM1 + 5, %dx
0:	in	%dx, %al
	test	$0x20, %al		# is there room?
	jz	0b
	pop	%ax
	mov	$COM1, %dx
	out	%al, %dx
1:	ret

banner:	.asciz	"drover guest "
tail:	.byte	' ', LETTER, '\r', '\n', 0
deaf:	.byte	STUBBORN
burns:	.byte	0
drive:	.byte	0

	.org	510
	.word	0xaa55
